"""The torch engine, slowed down, that writes down each token that it samples: group, member, place.

The first batch is answered at once. Of the others some tokens are sampled, and the rest only once the file
`<log>.gate` is there: until then they are in hand. The first of them that ends is told of on stdout.
"""

import os
import time
from pathlib import Path

from workers.engines.torch import make_engine

FIRST_BATCH = 4  # groups
LATE = "a late response has ended"


class CountingEngine:
    def __init__(self, engine):
        self._engine = engine
        self._places, self._sampled = {}, {}  # of what runs: place of the next token; tokens sampled here
        self._has_told = False
        self._gate = Path(os.environ["SAMPLED"] + ".gate")
        self._log = open(os.environ["SAMPLED"], "a", buffering=1)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def add(self, generation):
        self._engine.add(generation)
        self._places[generation.key] = len(generation.response_tokens)
        self._sampled[generation.key] = 0

    def abort(self, keys):
        self._engine.abort(keys)
        for key in keys:
            self._sampled.pop(key, None)

    def step(self):
        time.sleep(0.01)
        is_first = any(key[0] < FIRST_BATCH for key in self._sampled)
        if not is_first and any(self._sampled.values()) and not self._gate.exists():
            return []
        sampled = self._engine.step()
        for one in sampled:
            group, member, _ = one.key
            self._log.write(f"{group} {member} {self._places[one.key]}\n")
            self._places[one.key] += 1
            self._sampled[one.key] += 1
            if one.ending:
                del self._sampled[one.key]
                if group >= FIRST_BATCH and self._gate.exists() and not self._has_told:
                    self._has_told = True
                    print(LATE, flush=True)
        return sampled


def make(settings, model_directory):
    return CountingEngine(make_engine(settings, model_directory))
