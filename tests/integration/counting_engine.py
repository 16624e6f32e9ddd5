"""The torch engine, slowed down, that writes down each token that it samples: group, member, place.

The first batch is answered at once, the others once the file `<log>.gate` is there: until then they are in
hand.
"""

import os
import time
from pathlib import Path

from workers.engines.torch import make_engine

FIRST_BATCH = 4  # groups


class CountingEngine:
    def __init__(self, engine):
        self._engine = engine
        self._places, self._held = {}, []
        self._gate = Path(os.environ["SAMPLED"] + ".gate")
        self._log = open(os.environ["SAMPLED"], "a", buffering=1)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def add(self, generation):
        self._places[generation.key] = len(generation.response_tokens)
        if generation.key[0] < FIRST_BATCH:
            self._engine.add(generation)
        else:
            self._held.append(generation)

    def abort(self, keys):
        self._held = [generation for generation in self._held if generation.key not in set(keys)]
        self._engine.abort(keys)

    def is_busy(self):
        return bool(self._held) or self._engine.is_busy()

    def step(self):
        time.sleep(0.01)
        if self._gate.exists():
            for generation in self._held:
                self._engine.add(generation)
            self._held = []
        if not self._engine.is_busy():
            return []
        sampled = self._engine.step()
        for one in sampled:
            group, member, _ = one.key
            self._log.write(f"{group} {member} {self._places[one.key]}\n")
            self._places[one.key] += 1
        return sampled


def make(settings, model_directory):
    return CountingEngine(make_engine(settings, model_directory))
