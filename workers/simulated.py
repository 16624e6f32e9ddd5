"""Workers that cost nothing: rollout, reward and trainer as pure state machines in virtual time.

Invariants: no clock, socket or tensor; the same seed and the same messages at the same times give the same
answers; they speak the real protocol, so whatever drives them drives real workers by the same words.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol import messages
from protocol.messages import Delta, Ending, Generated, Message, Route

Out = list[tuple[float, Message]]
"""Messages with the virtual seconds from now at which they leave the worker; order of equal times is kept."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long things take, in virtual seconds, and how long responses are, in tokens."""

    attach_s: float = 1.0
    token_s: float = 0.02
    slowdown: float = 0.0  # of a decode step, per running trajectory beyond the first
    pull_s: float = 0.3
    score_s: float = 0.05
    train_s: float = 2.0
    publish_s: float = 0.2
    length: Callable[[random.Random], int] = field(
        default=lambda rng: round(rng.lognormvariate(3.0, 0.9)) + 1
    )


@dataclass(slots=True)
class _Running:
    route: Route
    left: int  # tokens until it ends by itself
    ending: Ending
    reported: int = 0
    sampled: float = 0.0  # tokens so far, fractional between two reports


class SimulatedRollout:
    """Decodes at a speed that falls with the number of running trajectories; reports when asked to
    wake up."""

    def __init__(
        self, seed: int, latencies: Latencies, *, capacity: int = 64, kv_tokens: int = 1 << 20
    ) -> None:
        self._rng = random.Random(seed)
        self.latencies = latencies
        self.capacity, self.kv_tokens = capacity, kv_tokens
        self.policy_version = -1
        self.running: dict[tuple[int, int, int], _Running] = {}
        self._advanced_s = 0.0

    def start(self) -> Out:
        """What it says once its engine is built."""
        return [(self.latencies.attach_s, messages.Ready(0, self.capacity, self.kv_tokens))]

    def handle(self, now: float, message: Message) -> Out:
        """Answers to one command."""
        out = self.advance(now)
        match message:
            case Route():
                self._add(message)
            case messages.Interrupt(attempts):
                deltas = tuple(self._end(key, "interrupt") for key in attempts if key in self.running)
                out += [(0.0, Generated(deltas))] if deltas else []
            case messages.Abort(attempts):
                for key in attempts:
                    self.running.pop(key, None)
            case messages.Pull(version, _, digest):
                self.policy_version = version
                out.append((self.latencies.pull_s, messages.Pulled(version, digest, self.latencies.pull_s)))
            case _:
                pass
        return out

    def advance(self, now: float) -> Out:
        """Decode up to now; endings are reported at once, progress when `report` asks for it."""
        while self.running:
            step_s = self._step_s()
            first = min(run.left - run.sampled for run in self.running.values())
            if self._advanced_s + first * step_s > now:
                break
            self._decode(first)
            self._advanced_s += first * step_s
            done = [key for key, run in self.running.items() if run.left - run.sampled < 1e-9]
            return [(0.0, Generated(tuple(self._end(key) for key in done))), *self.advance(now)]
        if self.running:
            self._decode((now - self._advanced_s) / self._step_s())
        self._advanced_s = max(self._advanced_s, now)
        return []

    def report(self, now: float) -> Out:
        """Progress of unfinished responses."""
        out = self.advance(now)
        deltas = tuple(
            self._delta(run, "") for run in self.running.values() if int(run.sampled) > run.reported
        )
        return out + ([(0.0, Generated(deltas))] if deltas else [])

    def next_ending_s(self) -> float | None:
        """When the next response will be complete if nothing changes."""
        if not self.running:
            return None
        return self._advanced_s + self._step_s() * min(
            run.left - run.sampled for run in self.running.values()
        )

    def _add(self, route: Route) -> None:
        drawn = self.latencies.length(random.Random(route.seed))
        done = sum(segment.count for segment in route.segments)
        left = max(1, drawn - done)
        ending: Ending = "stop" if left <= route.max_new_tokens else "length"
        key = (route.group, route.member, route.attempt)
        self.running[key] = _Running(route, min(left, route.max_new_tokens), ending)

    def _step_s(self) -> float:
        return self.latencies.token_s * (1 + self.latencies.slowdown * (len(self.running) - 1))

    def _decode(self, tokens: float) -> None:
        for run in self.running.values():
            run.sampled = min(run.left, run.sampled + tokens)

    def _delta(self, run: _Running, ending: Ending) -> Delta:
        route, start = run.route, run.reported
        run.reported = min(run.left, int(run.sampled + 1e-9))
        count = run.reported - start
        return Delta(route.group, route.member, route.attempt, start, count, self.policy_version, ending)

    def _end(self, key: tuple[int, int, int], ending: Ending | None = None) -> Delta:
        run = self.running.pop(key)
        return self._delta(run, run.ending if ending is None else ending)


class SimulatedReward:
    """Encodes at once, scores after a while; rewards are noise."""

    def __init__(self, seed: int, latencies: Latencies, *, prompt_tokens: int = 16) -> None:
        self._rng = random.Random(seed)
        self.latencies, self.prompt_tokens = latencies, prompt_tokens

    def start(self) -> Out:
        """What it says once its function is loaded."""
        return [(self.latencies.attach_s, messages.Ready(0, 0, 0))]

    def handle(self, now: float, message: Message) -> Out:
        """Answers to one command."""
        del now
        match message:
            case messages.Encode(groups):
                return [(0.0, messages.PromptsEncoded(tuple((g, self.prompt_tokens) for g in groups), ()))]
            case messages.Score(group, attempt, items):
                rewards = tuple(self._rng.random() for _ in items)
                return [(self.latencies.score_s, messages.GroupScored(group, attempt, rewards))]
        return []


class SimulatedTrainer:
    """Takes a fixed time for a step, and another for a publication that overlaps the next step."""

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.batches: list[messages.Train] = []

    def start(self) -> Out:
        """What it says once its model is loaded: version 0 is out a little later."""
        at = self.latencies.attach_s
        return [(at, messages.Ready(0, 0, 0)), (at + self.latencies.publish_s, self._published(0))]

    def handle(self, now: float, message: Message) -> Out:
        """Answers to one command."""
        del now
        match message:
            case messages.Train(train_version):
                self.batches.append(message)
                done, version = self.latencies.train_s, train_version + 1
                finished = messages.TrainStepFinished(version, done, (("loss", 0.0),))
                return [(done, finished), (done + self.latencies.publish_s, self._published(version))]
            case messages.SaveCheckpoint(version):
                return [(0.1, messages.CheckpointSaved(version, f"step_{version}"))]
        return []

    def _published(self, version: int) -> Message:
        publish_s = self.latencies.publish_s
        return messages.PolicyPublished(version, f"v{version}", f"digest-{version}", 1, publish_s)
