"""The simulated engine behind the interface of the real ones, one step at a time in virtual time.

Invariant: it decides what runs when and how long it takes; tokens are hashes of (seed, position) under a
uniform distribution, and weights are a number.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import log
from typing import Any

from protocol.settings import WorkerSettings
from workers.engines.interface import EngineLoad, Generation, Key, Sampled, check_generation
from workers.simulated import Request, SimulatedEngine, StepCost

PULL_S = 0.5  # virtual seconds that new weights take


def make_simulated(
    settings: WorkerSettings, _folder: str, *, prompt_tokens: int, vocabulary: int, context: int
) -> "SimulatedSubject":
    """One with room for `rollout.max_running` responses of full length."""
    rows = settings.rollout.max_running
    engine = SimulatedEngine(
        StepCost(), rows=rows, kv_blocks=rows * context // 16, token_budget=8192, prompt_tokens=prompt_tokens
    )
    return SimulatedSubject(engine, vocabulary=vocabulary, context=context)


class SimulatedSubject:
    """SimulatedEngine of workers/engines/interface.py over workers/simulated."""

    continues_noise = True

    def __init__(self, engine: SimulatedEngine, *, vocabulary: int, context: int) -> None:
        self.capacity, self.kv_tokens = engine.rows, engine.kv_blocks * 16
        self.policy_version = 0
        self._engine, self._vocabulary, self._context = engine, vocabulary, context
        self._now = 0.0
        self._live: dict[Key, tuple[Generation, Request]] = {}

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        check_generation(generation, context=self._context, vocabulary=self._vocabulary)
        if generation.key in self._live:
            raise ValueError(f"Generation {generation.key} is here already; a key names one generation.")
        done = len(generation.response_tokens)
        resident = len(generation.prompt_tokens) + done
        request = Request(
            generation.key, resident=resident, limit=generation.max_new_tokens, is_redone=done > 0
        )
        self._live[generation.key] = (generation, request)
        self._engine.add(self._now, request)

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these generations."""
        for key in keys:
            if self._live.pop(key, None) is not None:
                self._engine.remove(self._now, key)

    def step(self) -> list[Sampled]:
        """Advance to the end of the next step that samples something."""
        sampled: list[Sampled] = []
        while self._live and not sampled:
            ended = self._engine.advance(self._now)
            for key, (generation, request) in list(self._live.items()):
                sampled += self._new_tokens(key, generation, request, is_ended=request in ended)
            if not sampled:
                self._now = self._next_step_s()
        return sampled

    def load_weights(self, policy_version: int, tensors: Mapping[str, Any]) -> None:
        """Pause, as a simulated pull does: what runs keeps its KV, and only then."""
        if self._live:
            self._engine.pause(self._now + PULL_S)
        else:
            self._engine.clear(self._now, self._now + PULL_S)
        self.policy_version = policy_version

    def load(self) -> EngineLoad:
        """Load now, and totals."""
        engine = self._engine
        return EngineLoad(
            engine.running, len(engine.queue), engine.resident_tokens, engine.decode_steps,
            engine.decode_tokens, engine.decode_s, engine.prefill_tokens, engine.prefill_s,
            engine.decode_context, engine.preemptions, tuple(request.tag for request in engine.queue),
        )  # fmt: skip

    def is_busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._live)

    def _next_step_s(self) -> float:
        due = self._engine.next_change_s()
        assert due is not None
        step_s = self._engine.cost.stretch_s(self._engine.running, self._engine.resident_tokens, 1)
        return min(due, self._now + step_s) if self._engine.running else due

    def _new_tokens(
        self, key: Key, generation: Generation, request: Request, *, is_ended: bool
    ) -> list[Sampled]:
        have = self._engine.tokens(request)
        first = len(generation.response_tokens)
        positions = range(first + request.reported, first + have)
        request.reported = have
        if is_ended:
            del self._live[key]
        last = first + have - 1 if is_ended else -1
        return [
            Sampled(
                key, self._token(generation.seed, at), -log(self._vocabulary), "length" if at == last else ""
            )
            for at in positions
        ]

    def _token(self, seed: int, position: int) -> int:
        drawn = blake2b(f"{seed} {position}".encode(), digest_size=7).digest()
        return int.from_bytes(drawn, "little") % self._vocabulary
