"""Measures the work and the workers of a recorded run, to simulate workers like them.

Invariant: equal histories give equal figures; only values that the run never reported are made up, such as
the length of a response that it did not finish."""

from dataclasses import dataclass, field
from heapq import heapreplace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from controller.core.commands import Command, Forget, Send
from controller.core.core import Core
from controller.core.events import Received, Restarted
from controller.core.state.registry import Instance
from controller.durability.recording import Recorded, Recording
from controller.history.profile import Reports
from controller.history.shortened import deleted_in_words
from protocol import messages
from protocol.errors import RunError
from protocol.ids import PeerId
from protocol.messages import Score, Train
from workers.simulated import Workload, make_distribution
from workers.simulated.physics import BLOCK


class MeasuredBatch(NamedTuple):
    """One batch that the run sent to its trainer."""

    train_version: int
    at_s: float
    prompt_tokens: int
    tokens: int  # of responses
    ages: list[int]  # staleness of its trajectories
    restarts: int = 0  # of the controller before this batch

    @classmethod
    def of(cls, now: float, message: Train, restarts: int) -> "MeasuredBatch":
        """The batch of a message to the trainer."""
        items = message.items
        ages = [message.train_version - i.segments[0].policy_version for i in items if i.segments]
        tokens = sum(item.response_tokens for item in items)
        prompt_tokens = sum(item.prompt_tokens for item in items)
        return cls(message.train_version, now, prompt_tokens, tokens, ages, restarts)


@dataclass(slots=True)
class Measured:
    """Lengths, times and sizes that a run reported of its work and its workers."""

    lengths: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, member) -> response tokens
    pull_s: list[float] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    score_s: list[float] = field(default_factory=list)
    offload_s: list[float] = field(default_factory=list)  # of a trainer that leaves a shared device
    prompt_tokens: list[int] = field(default_factory=list)
    batches: list[MeasuredBatch] = field(default_factory=list)
    kv_tokens: int = 0
    instances: int = 0  # most rollout workers that were ready at a time
    text_workers: int = 0  # most reward workers, likewise
    trained_tokens: int = 0  # prompts and responses of the steps in `train_s`
    at_once: int = 1  # groups that one reward worker scores at a time
    has_agent: bool = False
    _roles: dict[PeerId, str] = field(default_factory=dict)
    _ready: dict[PeerId, str] = field(default_factory=dict)  # role by peer
    _deleted: str = ""  # a sentence, if the history is shortened
    _restarts: int = 0
    _in_hand: int = 0  # tokens of the trainer's batch
    _asked: dict[int, float] = field(default_factory=dict)
    _free_s: dict[PeerId, list[float]] = field(default_factory=dict)  # by reward worker: its processes
    _reports: Reports = field(default_factory=Reports)

    def begin(self, recording: Recording, core: Core) -> None:
        """Begin with the workers that the core knows at the beginning of the history."""
        self.has_agent = core.state.config.agent.is_on
        self._deleted = f" {deleted_in_words(recording)}" if recording.pruned else ""
        for worker in core.state.registry.workers.values():
            self._roles[worker.peer] = worker.role
            if isinstance(worker, Instance):
                self.kv_tokens = max(self.kv_tokens, worker.kv_tokens)
            if worker.ready:
                self._ready[worker.peer] = worker.role
        self._count_ready()

    def _count_ready(self) -> None:
        there = list(self._ready.values())
        self.instances = max(self.instances, there.count("rollout"))
        self.text_workers = max(self.text_workers, there.count("reward"))

    def take(self, recorded: Recorded, commands: list[Command]) -> None:
        """Measure one event and its commands."""
        self._reports.take(recorded.event)
        match recorded.event:
            case Received(_, messages.Pulled(pull_s=pull_s)):
                self.pull_s.append(pull_s)
            case Received(_, messages.PolicyPublished(publish_s=publish_s)) if publish_s:  # 0: it was found
                self.publish_s.append(publish_s)
            case Received(_, messages.TrainStepFinished(_, train_s, metrics)) if self._in_hand:
                ahead_s = max(0.0, dict(metrics).get("time_s/ahead", 0.0))  # of the same tokens
                self.train_s.append(train_s + ahead_s)
                self.trained_tokens += self._in_hand
            case Received(peer, messages.Released(release_s=release_s)) if self._roles.get(peer) == "trainer":
                self.offload_s.append(release_s)
            case Received(_, messages.PromptsEncoded(encoded)):
                self.prompt_tokens += [count for _, count in encoded]
            case Restarted():
                self._ready.clear()
                self._restarts += 1
            case Received(peer, messages.Attach(role=role)):
                self._roles[peer] = role
            case Received(peer, messages.Ready(kv_tokens=kv_tokens)):
                self.kv_tokens = max(self.kv_tokens, kv_tokens)
                self._ready[peer] = self._roles.get(peer, "")
                self._count_ready()
            case Received(peer, messages.GroupScored(group)) if group in self._asked:
                free_s = self._free_s.setdefault(peer, [0.0] * self.at_once)
                began_s = max(self._asked.pop(group), heapreplace(free_s, recorded.now))
                self.score_s.append(recorded.now - began_s)  # without the time in which no process was free
        for command in commands:
            self._take_command(recorded.now, command)

    def _take_command(self, now: float, command: Command) -> None:
        if isinstance(command, Forget):
            self._ready.pop(command.peer, None)
        if isinstance(command, Send) and isinstance(command.message, Score):
            group = command.message.group
            self._asked[group] = now
            for item in command.message.items:
                self.lengths[group, item.member] = sum(s.count for s in item.segments)
        elif isinstance(command, Send) and isinstance(command.message, Train):
            batch = MeasuredBatch.of(now, command.message, self._restarts)
            self._in_hand = batch.prompt_tokens + batch.tokens
            if not self.batches or batch.train_version > self.batches[-1].train_version:
                self.batches.append(batch)  # else the successor of a lost trainer repeats it

    def longest_period_s(self) -> float:
        """Most seconds between two batches of the run; 0 with fewer than two."""
        times = [batch.at_s for batch in self.batches]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def itself(self, at_s: float) -> tuple[float, float] | None:
        """Tokens per second and mean staleness of the run itself from `at_s` to its last batch.

        Steps in which its controller was restarted are left out, as restarts are not simulated. None if no
        step is left.
        """
        rest = [batch for batch in self.batches if batch.at_s >= at_s]
        steps = [pair for pair in pairwise(rest) if pair[0].restarts == pair[1].restarts]
        ages = [age for batch, _ in steps for age in batch.ages]
        if not ages:
            return None
        seconds = sum(after.at_s - batch.at_s for batch, after in steps)
        return sum(batch.tokens for batch, _ in steps) / max(seconds, 1e-9), fmean(ages)

    def cluster(self, path: str) -> list[str]:
        """Overrides of `simulation` for workers like those of the run at `path`.

        Raises: RunError if the run is too short, or has an agent.
        """
        if self.has_agent:
            raise RunError(
                f"{path} cannot be simulated on: it is the run of an agent, and turns and the time of "
                "environments are not read from a journal. Simulate its configuration instead, `launch.py "
                "simulate CONFIG.yaml`: `simulation.environment` describes the episodes, "
                f"simulation.workload.kind=trace simulation.workload.trace={path} takes the lengths of their "
                "turns from the run, and `launch.py profile RUN` prints how fast its engines are."
            )
        if not (self.lengths and self.train_s and self.prompt_tokens and self.kv_tokens):
            raise RunError(
                f"{path} cannot be simulated on: it has {len(self.lengths)} complete responses, "
                f"{len(self.train_s)} train steps, {len(self.prompt_tokens)} prompts, and rollout workers "
                f"with room for {self.kv_tokens} tokens. Expected at least one of each.{self._deleted}"
            )
        c = self._reports.profile(path).together.coefficients
        values = {
            "engine.speeds": "[1.0]",  # the fitted costs are those of all instances together
            "engine.floor_s": c.floor,
            "engine.step_base_s": c.other_b,
            "engine.token_s": c.other_k,
            "engine.decode_base_s": c.attention_b,
            "engine.decode_context_s": c.attention_k,
            "engine.prefill_base_s": c.prefill_b,
            "engine.prefill_pair_s": c.prefill_square,
            "engine.kv_blocks": max(1, self.kv_tokens // BLOCK),
            "workload.kind": "fixed",  # replaced by the run's responses
            "workload.trace": '""',
            "workload.prompt_tokens": max(1, round(fmean(self.prompt_tokens))),
            "train_token_s": sum(self.train_s) / self.trained_tokens,
            "train_base_s": 0.0,  # included in the run's own steps, as the next one
            "recompute_share": 0.0,
            "publish_s": _mean(self.publish_s),
            "pull_s": _mean(self.pull_s),
            "pulls_at_once": 0,  # included in the run's own pulls
            "score_s": _mean(self.score_s),
            **({"offload_s": _mean(self.offload_s)} if self.offload_s else {}),
            "attach_s": 0.0,
            "report_s": 0.0,  # as often as the run's own workers did
        }
        return [f"simulation.{key}={value}" for key, value in values.items()]


class RecordedWorkload(Workload):
    """The response lengths of a run; a response that it never finished gets one of them by chance."""

    def __init__(
        self, lengths: dict[tuple[int, int], int], *, cap: int, seed: int, prompt_tokens: int
    ) -> None:
        found = make_distribution("trace", cap=cap, lengths=list(lengths.values()))
        super().__init__(found, seed=seed, prompt_tokens=prompt_tokens)
        self._known = lengths

    def length(self, group: int, member: int, turn: int = 0) -> int:
        """Tokens of this response; drawn for later turns of an agent."""
        known = None if turn else self._known.get((group, member))
        return known if known is not None else super().length(group, member, turn)


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
