"""A rollout engine without a model: response token i is the number i, under logprob -(i + 1) / 1000.

A generation with seed 0 waits in line for ever.
"""

import time

from protocol.errors import ConfigError
from workers.engines.interface import EngineLoad, Generation, Sampled


class ScriptedEngine:
    capacity = 4
    kv_tokens = 1000
    policy_version = 0

    def __init__(self):
        self._running = {}  # key -> [next token, end]
        self._waiting = set()
        self._steps = self._tokens = 0

    def add(self, generation: Generation) -> None:
        if len(generation.prompt_tokens) > 8:
            raise ValueError(
                f"A prompt of {len(generation.prompt_tokens)} tokens can never run; at most 8 do."
            )
        if generation.seed == 0:
            self._waiting.add(generation.key)
            return
        start = len(generation.response_tokens)
        self._running[generation.key] = [start, start + generation.max_new_tokens]

    def abort(self, keys):
        for key in keys:
            self._running.pop(key, None)
            self._waiting.discard(key)

    def step(self):
        time.sleep(0.001)  # the time that a decode step takes
        sampled = []
        for key, (token, end) in list(self._running.items()):
            is_last = token + 1 == end
            sampled.append(Sampled(key, token, -(token + 1) / 1000, "length" if is_last else ""))
            self._running[key][0] += 1
            if is_last:
                del self._running[key]
        self._steps += 1
        self._tokens += len(sampled)
        return sampled

    def load_weights(self, policy_version, tensors):
        if set(tensors) != {"weight"}:
            raise ValueError(f"Expected the tensor `weight`; got {sorted(tensors)}.")
        self.policy_version = policy_version

    def load(self):
        return EngineLoad(len(self._running), 0, 0, self._steps, self._tokens, 0.0, 0, 0.0)

    def is_busy(self):
        return bool(self._running or self._waiting)


def make(settings, model_directory):
    return ScriptedEngine()


def make_none(settings, model_directory):
    raise ConfigError("This engine cannot be made.")


def make_broken(settings, model_directory):
    return {}["surprise"]
