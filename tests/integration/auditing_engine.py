"""The torch engine, which writes down each token that it samples: process, group, member, place.

The place counts given and sampled tokens, so that of an agent it tells the turns apart.
"""

import os

from workers.engines.torch import make_engine


class AuditingEngine:
    def __init__(self, engine):
        self._engine = engine
        self._places = {}  # of what runs: place of the next token
        self._log = open(os.environ["SAMPLED"], "a", buffering=1)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def add(self, generation):
        self._engine.add(generation)
        self._places[generation.key] = len(generation.prompt_tokens) + len(generation.response_tokens)

    def step(self):
        sampled = self._engine.step()
        for one in sampled:
            group, member, _ = one.key
            self._log.write(f"{os.getpid()} {group} {member} {self._places[one.key]}\n")
            self._places[one.key] += 1
        return sampled


def make(settings, model_directory):
    return AuditingEngine(make_engine(settings, model_directory))
