"""The torch engine, slowed down, that writes down each token that it samples: group, member, place."""

import os
import time

from workers.engines.torch import make_engine


class CountingEngine:
    def __init__(self, engine):
        self._engine = engine
        self._places = {}
        self._log = open(os.environ["SAMPLED"], "a", buffering=1)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def add(self, generation):
        self._engine.add(generation)
        self._places[generation.key] = len(generation.response_tokens)

    def step(self):
        time.sleep(0.01)
        sampled = self._engine.step()
        for one in sampled:
            group, member, _ = one.key
            self._log.write(f"{group} {member} {self._places[one.key]}\n")
            self._places[one.key] += 1
        return sampled


def make(settings, model_directory):
    return CountingEngine(make_engine(settings, model_directory))
