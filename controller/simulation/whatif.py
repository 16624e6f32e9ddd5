"""A recorded run goes on from one of its moments in virtual time, under its own strategy or another one.

Invariants: the core is the run's, with everything that it knew at that moment; responses are as long as those
that the run really produced, and where it never finished one, as one drawn from those that it did; speeds and
times are those that the run reported. What cannot be known is the same for every strategy: at that moment all
rollout and reward workers are started anew and go on from the last reported tokens, and a train step that was
under way begins anew.
"""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from controller.commands import Command, ReadPrompts, Send
from controller.config import Config
from controller.config_file import change_config
from controller.core import Core
from controller.events import PeerFaulted, PromptsRead, Received, WorkerExited
from controller.profile import profile
from controller.recording import Recorded, Recording
from controller.replay import turns
from controller.shadow import parts
from controller.simulation.host import Simulation
from controller.simulation.records import Window, window
from protocol import messages
from protocol.errors import ConfigError, RunError
from protocol.messages import Score, Train
from workers.simulated import Workload, make_distribution
from workers.simulated.physics import BLOCK

STEPS = 30  # train steps that are simulated
ENDLESS = 1_000_000  # respawns


@dataclass(slots=True)
class Measured:
    """What a run tells of its work and its workers."""

    lengths: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, member) -> response tokens
    pull_s: list[float] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    score_s: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    train_tokens: int = 0
    kv_tokens: int = 0
    end_s: float = 0.0
    _asked: dict[int, float] = field(default_factory=dict)

    def take(self, recorded: Recorded, commands: list[Command]) -> None:
        """Learn from one turn."""
        self.end_s = recorded.now
        match recorded.event:
            case Received(_, messages.Pulled(pull_s=pull_s)):
                self.pull_s.append(pull_s)
            case Received(_, messages.PolicyPublished(publish_s=publish_s)):
                self.publish_s.append(publish_s)
            case Received(_, messages.TrainStepFinished(train_s=train_s)):
                self.train_s.append(train_s)
            case Received(_, messages.PromptsEncoded(encoded)):
                self.prompt_tokens += [count for _, count in encoded]
            case Received(_, messages.Ready(kv_tokens=kv_tokens)):
                self.kv_tokens = max(self.kv_tokens, kv_tokens)
            case Received(_, messages.GroupScored(group)) if group in self._asked:
                self.score_s.append(recorded.now - self._asked.pop(group))
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, Score):
                group = command.message.group
                self._asked[group] = recorded.now
                for item in command.message.items:
                    self.lengths[group, item.member] = sum(s.count for s in item.segments)
            elif isinstance(command, Send) and isinstance(command.message, Train):
                items = command.message.items
                self.train_tokens += sum(item.prompt_tokens + item.response_tokens for item in items)

    def cluster(self, recording: Recording) -> list[str]:
        """Overrides of `simulation` that make workers like those of the run. Raises: RunError if it was too
        short to tell."""
        if not (self.lengths and self.train_s and self.prompt_tokens and self.kv_tokens):
            raise RunError(
                f"{recording.path} cannot be simulated on: it has {len(self.lengths)} complete responses and "
                f"{len(self.train_s)} train steps. Expected at least one of each."
            )
        c = profile(recording.path).together.coefficients
        values = {
            "engine.floor_s": c.floor,
            "engine.step_base_s": c.other_b,
            "engine.token_s": c.other_k,
            "engine.decode_base_s": c.attention_b,
            "engine.decode_context_s": c.attention_k,
            "engine.prefill_base_s": c.prefill_b,
            "engine.prefill_pair_s": c.prefill_square,
            "engine.kv_blocks": max(1, self.kv_tokens // BLOCK),
            "workload.prompt_tokens": max(1, round(fmean(self.prompt_tokens))),
            "train_token_s": sum(self.train_s) / max(1, self.train_tokens),
            "publish_s": _mean(self.publish_s),
            "pull_s": _mean(self.pull_s),
            "score_s": _mean(self.score_s),
            "attach_s": 0.0,
        }
        return [f"simulation.{key}={value}" for key, value in values.items()]


class RecordedWorkload(Workload):
    """Lengths that a run produced; where it never finished a response, one drawn from those that it did."""

    def __init__(
        self, lengths: dict[tuple[int, int], int], *, cap: int, seed: int, prompt_tokens: int
    ) -> None:
        found = make_distribution("trace", cap=cap, lengths=list(lengths.values()))
        super().__init__(found, seed=seed, prompt_tokens=prompt_tokens)
        self._known = lengths

    def length(self, group: int, member: int) -> int:
        """Tokens of this response."""
        known = self._known.get((group, member))
        return known if known is not None else super().length(group, member)


@dataclass(slots=True)
class Moment:
    """A run at one of its moments, with what was asked of the host and the trainer and not answered yet."""

    core: Core
    now: float = 0.0
    prompts_read: int = 0
    wanted_prompts: int | None = None
    trainer_task: messages.Message | None = None


class Continuation(Simulation):
    """The run from a moment on."""

    def __init__(
        self, config: Config, moment: Moment, lengths: dict[tuple[int, int], int], *, seed: int
    ) -> None:
        super().__init__(config, seed=seed, with_digest=False, core=moment.core, now=moment.now)
        self._moment, self._read = moment, moment.prompts_read
        cap, prompt_tokens = config.rollout.max_response_tokens, self.cluster.prompt_tokens
        self.cluster.workload = RecordedWorkload(lengths, cap=cap, seed=seed, prompt_tokens=prompt_tokens)
        self._replace_workers()

    def _replace_workers(self) -> None:
        registry, moment = self.core.state.registry, self._moment
        trainer = registry.trainer()
        assert trainer is not None
        worker = self.cluster.make(trainer.name, "trainer", self._now)
        if moment.trainer_task is not None:
            worker.handle(self._now, moment.trainer_task)
        self.adopt(trainer.peer, trainer.name, "trainer", worker)
        if moment.wanted_prompts is not None:
            self._at(0.0, self._read_prompts, moment.wanted_prompts)
        others = [
            w for w in registry.workers.values() if w.role != "trainer" and w.name not in registry.local
        ]
        for guest in others:
            self._deliver(PeerFaulted(guest.peer, "replaced by a simulated worker"))
            self._spawn(guest.name, guest.role)
        for local in [local for local in registry.local.values() if local.role != "trainer"]:
            self._deliver(WorkerExited(local.name, local.role, 0, "replaced by a simulated worker"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both strategies, simulated on from the same moment."""

    at_s: float
    version: int  # train steps that were made by then
    own: Window
    other: Window


def go_on(recording: Recording, other: Config, *, at_s: float | None = None, seed: int = 0) -> Comparison:
    """What the run's own strategy and another one come to from a moment on (default: half of the run).

    Raises: ConfigError if the other strategy cannot take over there, RunError if the run is too short.
    """
    own = recording.config()
    if other.staleness.max_staleness != own.staleness.max_staleness:
        raise ConfigError(
            f"The other strategy has staleness.max_staleness {other.staleness.max_staleness}, the run has "
            f"{own.staleness.max_staleness}: groups that it has begun have no place under another bound. "
            "Choose a strategy with the same bound, or compare with `launch.py simulate`."
        )
    measured, core = Measured(), recording.make_core()
    for turn in turns(recording, core):
        measured.take(turn.recorded, turn.commands)
    cluster = measured.cluster(recording)
    found: list[Window] = []
    at_s = measured.end_s / 2 if at_s is None else at_s
    for strategy in (own, other):
        moment = reach(recording, at_s)
        steps = moment.core.state.steps + STEPS
        limits = [f"run.steps={steps}", f"controller.respawns={ENDLESS}"]
        config = change_config(strategy, [*cluster, *limits])
        exchange(moment.core, recording.make_core(own), recording.make_core(config))
        simulation = Continuation(config, moment, measured.lengths, seed=seed)
        outcome = simulation.run()
        bound = config.staleness.max_staleness
        figures = window(outcome.starts, max_staleness=bound, skip=bound + 2)
        if figures is None:
            raise RunError(
                f"Simulated on from {moment.now:.1f} s, the run ends after {len(outcome.starts)} batches "
                f"({outcome.reason}), too few to compare. Give an earlier --at."
            )
        found.append(figures)
    return Comparison(moment.now, moment.core.state.steps - len(outcome.starts), found[0], found[1])


def reach(recording: Recording, at_s: float) -> Moment:
    """The run at its first moment from `at_s` on at which every version that was made is published.

    Raises: RunError if there is none with a trainer and weights.
    """
    moment = Moment(recording.make_core())
    state = moment.core.state
    for recorded, commands in turns(recording, moment.core):
        moment.now = recorded.now
        match recorded.event:
            case PromptsRead(first, count):
                moment.prompts_read, moment.wanted_prompts = first + count, None
            case Received(_, messages.TrainStepFinished() | messages.CheckpointSaved()):
                moment.trainer_task = None
            case _:
                pass
        for command in commands:
            if isinstance(command, ReadPrompts):
                moment.wanted_prompts = command.count
            elif isinstance(command, Send) and isinstance(command.message, Train | messages.SaveCheckpoint):
                moment.trainer_task = command.message
        newest = state.versions.newest
        is_whole = newest is not None and newest.policy_version == state.steps and state.registry.trainer()
        if recorded.now >= at_s and is_whole and state.ending is None:
            return moment
    raise RunError(
        f"From {at_s:.1f} s on, {recording.path} has no moment at which the run could be taken over: it has "
        f"events up to {moment.now:.1f} s. Give an --at between its first weights and its end."
    )


def exchange(core: Core, own: Core, other: Core) -> None:
    """Give a running core the strategy of `other`; `own` is as it was when it began, so that what a strategy
    sets can be told from what the run has changed. Raises: ConfigError if the ledgers do not fit."""
    begun = parts(other)
    before = parts(own)
    for name, part in parts(core).items():
        for attribute, value in vars(begun[name]).items():
            is_rule = callable(value) or isinstance(value, bool | int | float | str | None)
            if is_rule and value != vars(before[name]).get(attribute):
                setattr(part, attribute, value)
    state = core.state
    state.config = other.state.config
    state.strategy_settings = other.state.strategy_settings
    staleness, was = other.state.config.staleness, own.state.config.staleness
    if (staleness.ledger, staleness.spare_groups) != (was.ledger, was.spare_groups):
        _exchange_ledger(core, other)
    state.refresh_settings()


def _exchange_ledger(core: Core, other: Core) -> None:
    state, ledger = core.state, other.state.ledger
    ledger.train_version = state.ledger.train_version
    for group in state.groups.values():
        if group.state not in ("generating", "scoring", "occupied"):
            continue
        assert group.policy_version is not None
        if not ledger.can_reserve(group.policy_version):
            raise ConfigError(
                f"The other strategy has no place for group {group.id}, begun under version "
                f"{group.policy_version} for the batch of version {ledger.train_version} or later. Choose one "
                "that promises no more than the run's, or another --at."
            )
        ledger.reserve(group.id, group.policy_version)
        if group.state == "occupied":
            ledger.occupy(group.id)
    state.ledger = ledger


def in_words(comparison: Comparison) -> str:
    """The comparison for a person, several lines."""
    rows = [("own", comparison.own), ("other", comparison.other)]
    lines = [
        f"Simulated on from {comparison.at_s:.1f} s for {STEPS} train steps:",
        f"{'strategy':<10}{'tokens/s':>12}{'staleness mean':>16}{'max':>5}{'trainer idle':>14}{'rollout idle':>14}",
    ]
    for name, w in rows:
        idle: Any = f"{w.trainer_idle:>14.0%}{w.rollout_idle:>14.0%}"
        lines.append(f"{name:<10}{w.tokens_per_s:>12.1f}{w.staleness_mean:>16.2f}{w.staleness_max:>5}{idle}")
    ratio = comparison.other.tokens_per_s / max(comparison.own.tokens_per_s, 1e-9)
    lines.append(f"other / own: {ratio:.2f} of the throughput")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
