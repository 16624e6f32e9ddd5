"""Simulates a recorded run in virtual time, under its own strategy and another one.

It goes on from one of the run's moments, or begins again.

Invariants: the core that goes on is the run's, with its whole state at that moment; responses have the
lengths of the run's own, and a response that the run never finished gets one of them by chance; speeds and
times are those that the run reported. Unknown state is treated alike for every strategy: at that moment all
rollout and reward workers are restarted and go on from the last reported tokens, and a train step in progress
starts over. Under another bound the groups in flight have no places: then both strategies begin at version 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from controller.config.load import change_config
from controller.config.models import Config
from controller.core.commands import ReadHeldOut, ReadPrompts, Send
from controller.core.core import Core
from controller.core.decisions.supply.prompt_order import NO_IDENTITY
from controller.core.events import Event, HeldOutRead, PeerFaulted, PromptsRead, Received, WorkerExited
from controller.core.state.told import ToldTrainer
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.durability.recording import Recording
from controller.durability.replay import Replayed, turns
from controller.simulation.charges import train_token_s
from controller.simulation.host import Simulation
from controller.simulation.measured import Measured, RecordedWorkload
from controller.simulation.records import TrainStart, Window, whole_cycles, window
from controller.simulation.simulated_workers import step_cost
from protocol import messages
from protocol.errors import ConfigError, RunError
from protocol.messages import Message
from strategies.own import outside_a_run
from workers.simulated import SimulatedTrainer
from workers.simulated.trainer import ORDER_OF

STEPS = 30  # train steps that are simulated
ENDLESS = 1_000_000  # respawns
FIRST_PEER = 1 << 40  # a run that was itself simulated counts its peers from 0
PATIENCE = 20  # times the longest step of the run, until a simulated one counts as stuck
LEAST_PATIENCE_S = 600.0
MOST_AGAIN = 5  # times that one batch may go to the trainer, as respawns are endless here

REPLACED = "replaced by a simulated worker"
NO_ORDER = (
    "Which prompts of the run come again is not among what is simulated, so its staleness.sampler is "
    "simulated without what it knew of them: by the mean length of each source alone."
)

Tell = Callable[[str], None]


@dataclass(slots=True)
class Moment:
    """A run at one of its moments, with the unanswered orders to the host and the trainer."""

    core: Core
    now: float = 0.0
    prompts_read: int = 0
    wanted_prompts: int | None = None
    wanted_held_out: ReadHeldOut | None = None
    trainer_tasks: dict[type[Message], Message] = field(default_factory=dict)
    """Unfinished orders of the trainer, at most one of each kind, in the order in which it got them."""
    untold: set[int] = field(default_factory=set)
    """Versions that it had to make or save before the history begins, by orders that are not known."""

    def begin(self) -> None:
        """Take over the state of the core at the beginning of the history."""
        self.prompts_read = self.core.scoring.read_until
        trainer = self.core.state.registry.trainer()
        if trainer is not None and isinstance(trainer.told, ToldTrainer):
            self.untold = {*trainer.told.making, *trainer.told.saving, *(v + 1 for v in trainer.told.ahead)}
            if trainer.device == "releasing":
                self.trainer_tasks[messages.Release] = messages.Release()

    def hear(self, turn: Replayed) -> None:
        """Take an event of the run and its commands: which orders they answer, and which they give."""
        self.now = turn.recorded.now
        trainer = self.core.state.registry.trainer()
        peer = None if trainer is None else trainer.peer
        match turn.recorded.event:
            case PromptsRead(first, count):
                self.prompts_read, self.wanted_prompts = first + count, None
            case HeldOutRead():
                self.wanted_held_out = None
            case Received(by, message) if by == peer and type(message) in ORDER_OF:
                self.trainer_tasks.pop(ORDER_OF[type(message)], None)
                if isinstance(message, messages.TrainStepFinished | messages.CheckpointSaved):
                    self.untold.discard(message.policy_version)
            case _:
                pass
        for command in turn.commands:
            match command:
                case ReadPrompts(count=count):
                    self.wanted_prompts = count
                case ReadHeldOut():
                    self.wanted_held_out = command
                case Send(to, task) if to == peer and type(task) in ORDER_OF.values():
                    self.trainer_tasks[type(task)] = task
                case _:
                    pass
        if peer is None:
            self.trainer_tasks.clear()  # lost with the trainer; its successor gets them again
            self.untold.clear()

    @property
    def can_be_taken_over(self) -> bool:
        """Whether there is a trainer, with known orders, and every version that was made is published."""
        state = self.core.state
        newest = state.versions.newest
        is_whole = newest is not None and newest.policy_version == state.steps
        return is_whole and not self.untold and state.registry.trainer() is not None and state.ending is None

    def copies(self, count: int) -> "list[Moment]":
        """`count` independent copies of this moment."""
        image = Freezer().freeze(self.core)
        return [replace(self, core=thaw(image, self.core.state.strategies)) for _ in range(count)]


class Continuation(Simulation):
    """A simulation of the run from a moment on."""

    def __init__(
        self, config: Config, moment: Moment, lengths: dict[tuple[int, int], int], *, seed: int
    ) -> None:
        super().__init__(config, seed=seed, with_digest=False, core=moment.core, now=moment.now)
        self._moment, self._read = moment, moment.prompts_read
        self._spawned = FIRST_PEER
        self._hosts = {worker.name: worker.host for worker in moment.core.state.registry.workers.values()}
        moment.core.scoring.data_has_ended = False  # lengths go on to be drawn where the data has ended
        use_lengths(self, config, lengths, seed)
        self._replace_workers()

    def host_of(self, name: str) -> str:
        """The host of the worker of this name; that of the trainer for a new worker."""
        trainer = self.core.state.registry.trainer()
        return self._hosts.get(name, trainer.host if trainer else "")

    def _step(self, event: Event) -> None:
        before = len(self.outcome.warnings)
        super()._step(event)
        match event:
            case PeerFaulted(reason=words) | WorkerExited(last_words=words) if words == REPLACED:
                del self.outcome.warnings[before:]  # warnings of a loss that the run did not have
            case _:
                pass

    def _replace_workers(self) -> None:
        registry, moment = self.core.state.registry, self._moment
        trainer = registry.trainer()
        assert trainer is not None
        worker = self.cluster.make(trainer.name, "trainer", self._now)
        assert isinstance(worker, SimulatedTrainer)
        worker.go_on()
        at_once = [said for task in moment.trainer_tasks.values() for said in worker.handle(self._now, task)]
        self.adopt(trainer.peer, trainer.name, "trainer", worker)
        self._at(0.0, self._say, self._processes[trainer.peer], at_once)
        if moment.wanted_prompts is not None:
            self._at(0.0, self._read_prompts, moment.wanted_prompts)
        if moment.wanted_held_out is not None:
            self._execute(moment.wanted_held_out)
        others = [
            w for w in registry.workers.values() if w.role != "trainer" and w.name not in registry.local
        ]
        for guest in others:
            self._deliver(PeerFaulted(guest.peer, REPLACED))
            self._spawn(guest.name, guest.role)
        for local in [local for local in registry.local.values() if local.role != "trainer"]:
            self._deliver(WorkerExited(local.name, local.role, 0, REPLACED))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both strategies, simulated on from the same moment."""

    at_s: float | None  # None: both started over
    itself: tuple[float, float] | None  # tokens per second and mean staleness of the real run
    own: Window
    other: Window


def refuse(own: Config, other: Config, *, at_s: float | None) -> None:
    """Check that strategies can be compared. Raises: ConfigError if not, for any history of the run."""
    if own.trainer.is_supervised:
        raise ConfigError(
            "The run trains on given responses (trainer.algorithm: sft): its strategy decides nothing that "
            "another one could decide otherwise. Expected a run that generates."
        )
    if at_s is not None and other.staleness.max_staleness != own.staleness.max_staleness:
        raise ConfigError(
            f"The other strategy has staleness.max_staleness {other.staleness.max_staleness}, the run has "
            f"{own.staleness.max_staleness}: groups that it has begun have no place under another bound, so "
            "it cannot take over in the middle. Leave out --at, and both are simulated from the beginning."
        )


def go_on(
    recording: Recording,
    other: Config,
    *,
    at_s: float | None = None,
    measured: Measured | None = None,
    seed: int = 0,
    tell: Tell = lambda text: None,
    warn: Tell = lambda text: None,
) -> Comparison:
    """Simulate the run's own strategy and another one from a moment on (default: half of the run).

    Both begin at version 0 if the other one has another bound.

    `measured`: measurements of the whole run, if they are known already. Raises: ConfigError if the other
    strategy cannot take over at `at_s`, RunError if the run is too short."""
    refuse(recording.config(), other, at_s=at_s)
    measured = measured or measure(recording)
    cluster = measured.cluster(recording.path)
    if other.staleness.max_staleness != recording.config().staleness.max_staleness:
        return _start_over(recording, other, measured, cluster, seed=seed, tell=tell)
    moment = reach(recording, recording.until_s / 2 if at_s is None else at_s)
    own = moment.core.state.config  # its limits may be others than at the beginning
    bound, found = own.staleness.max_staleness, []
    rules = other.staleness.model_copy(update={"sampler": own.staleness.sampler})
    if rules != other.staleness:
        warn(f"The sampler stays the run's, {rules.sampler}: its prompts were read for that long before.")
    strategies = (own, own.model_copy(update={"staleness": rules}))
    for name, copy, strategy in zip(("own", "other"), moment.copies(2), strategies, strict=True):
        limits = [f"run.steps={moment.core.state.steps + STEPS}", f"controller.respawns={ENDLESS}"]
        config = change_config(strategy, [*cluster, *limits])
        exchange(copy.core, recording.make_core(config))
        simulation = Continuation(config, copy, measured.lengths, seed=seed)
        found.append(figures(simulation, measured, name, bound=bound, skip=bound + 2, tell=tell, warn=warn))
    return Comparison(moment.now, measured.itself(moment.now), found[0], found[1])


def measure(recording: Recording) -> Measured:
    """Measure the work and the workers of a run. Raises: RunError if its history is damaged."""
    measured = Measured(at_once=recording.config().reward.processes)
    core = recording.make_core()
    measured.begin(recording, core)
    for turn in turns(recording, core):
        measured.take(turn.recorded, turn.commands)
    return measured


def _start_over(
    recording: Recording, other: Config, measured: Measured, cluster: list[str], *, seed: int, tell: Tell
) -> Comparison:
    """Simulate both strategies from version 0, each with as many workers as the run had."""
    own = recording.config()
    skip = max(own.staleness.max_staleness, other.staleness.max_staleness) + 2
    workers = [f"rollout.instances={measured.instances}", f"reward.workers={measured.text_workers}"]
    limits = [f"run.steps={STEPS}", f"controller.respawns={ENDLESS}", "trainer.local=true"]
    found = []
    for name, strategy in (("own", own), ("other", other)):
        config = change_config(strategy, [*cluster, *workers, *limits])
        simulation = Simulation(config, seed=seed, with_digest=False, strategies=recording.strategies(config))
        use_lengths(simulation, config, measured.lengths, seed)
        bound = config.staleness.max_staleness
        found.append(figures(simulation, measured, name, bound=bound, skip=skip, tell=tell))
    return Comparison(None, measured.itself(0.0), found[0], found[1])


def use_lengths(
    simulation: Simulation, config: Config, lengths: dict[tuple[int, int], int], seed: int
) -> None:
    """Give simulated responses these lengths; responses without one draw from them."""
    cap, cluster = config.rollout.max_response_tokens, simulation.cluster
    cluster.workload = RecordedWorkload(lengths, cap=cap, seed=seed, prompt_tokens=cluster.prompt_tokens)


def figures(
    simulation: Simulation, measured: Measured, name: str, *, bound: int, skip: int, tell: Tell,
    warn: Tell = lambda text: None,
) -> Window:  # fmt: skip
    """The figures of one simulated run. Raises: RunError if it fails, or does not end."""
    began_s, outcome = simulation.core.state.now, simulation.outcome
    again = [0, 0]  # starts of one batch, and its step

    def on_start(start: TrainStart) -> None:
        tell(
            f"simulating {name}: step {len(outcome.starts)} of {STEPS}, {start.at_s - began_s:.0f} virtual s"
        )
        steps = simulation.core.state.steps
        again[:] = [again[0] + 1 if steps == again[1] else 1, steps]
        if again[0] > MOST_AGAIN:
            why = outcome.warnings[-1] if outcome.warnings else "no reason was told"
            raise RuntimeError(f"One batch went to the trainer {again[0]} times ({why}).")

    simulation.on_start = on_start
    slowest_s = max(measured.longest_period_s(), slow_step_s(simulation.core.state.config, measured))
    try:
        with outside_a_run():
            simulation.run(patience_s=max(LEAST_PATIENCE_S, PATIENCE * slowest_s))
    except RuntimeError as error:
        way_on = "Please" if name == "own" else "Give other changes; if these should work, please"
        raise RunError(
            f"Simulated on from {began_s:.1f} s, the run does not end: {error} {way_on} report it with "
            "run.db."
        ) from error
    for text in simulation.outcome.warnings:
        warn(NO_ORDER if text == NO_IDENTITY else text)
    how = f"after {len(outcome.starts)} batches ({outcome.reason.rstrip('.')})"
    if not outcome.is_success:
        raise RunError(f"Simulated on from {began_s:.1f} s, the run fails {how}.")
    skip = whole_cycles(outcome.starts, skip=skip, most=bound + 1)
    found = window(outcome.starts, max_staleness=bound, skip=skip)
    if found is None:
        words = f"Simulated on from {began_s:.1f} s, the run ends {how}, too few to compare."
        raise RunError(f"{words} Give an earlier --at.")
    return found


def slow_step_s(config: Config, measured: Measured) -> float:
    """Seconds of a train step without any overlap: responses run one after the other on each instance.

    Steps of a simulated run with these settings hardly ever take longer.
    """
    simulation, lengths = config.simulation, measured.lengths.values()
    prompt, length = simulation.workload.prompt_tokens, sum(lengths) / max(1, len(lengths))
    responses = config.trainer.batch_groups * config.rollout.group_size
    alone_s = step_cost(config).stretch_s(1, prompt, max(lengths, default=0))
    waves = max(1, -(-responses // config.rollout.instances))
    slowest = min(simulation.engine.speeds)
    scored_s = simulation.score_s * config.trainer.batch_groups
    trained_s = simulation.train_base_s + train_token_s(config) * responses * (prompt + length)
    return waves * alone_s / slowest + trained_s + scored_s + simulation.publish_s + simulation.pull_s


def reach(recording: Recording, at_s: float) -> Moment:
    """The run at its first moment from `at_s` on at which every version that was made is published.

    Raises: RunError if there is none with a trainer and weights.
    """
    moment = Moment(recording.make_core())
    moment.begin()
    for turn in turns(recording, moment.core):
        moment.hear(turn)
        if moment.now >= at_s and moment.can_be_taken_over:
            return moment
    raise RunError(
        f"From {at_s:.1f} s on, {recording.path} has no moment at which the run could be taken over: it has "
        f"events up to {moment.now:.1f} s. Give an --at between its first weights and its end."
    )


def exchange(core: Core, other: Core) -> None:
    """Give a running core the configuration and strategies of `other`, a new core.

    Raises: ConfigError if a group in flight has no place in the other ledger.
    """
    state, was, staleness = core.state, core.state.config.staleness, other.state.config.staleness
    state.strategies = other.state.strategies
    state.config = other.state.config
    state.strategy_settings = other.state.strategy_settings
    core.membership.settings = other.membership.settings
    if (staleness.ledger, staleness.spare_groups) != (was.ledger, was.spare_groups):
        _exchange_ledger(core, other)
    state.refresh_settings()


def _exchange_ledger(core: Core, other: Core) -> None:
    state, ledger = core.state, other.state.ledger
    ledger.begin_at(state.ledger.train_version)
    for group in state.groups.values():
        if group.state not in ("generating", "scoring", "occupied"):
            continue
        assert group.policy_version is not None
        if not ledger.can_reserve(group.policy_version):
            raise ConfigError(
                f"The other strategy has no place for group {group.id}, begun under version "
                f"{group.policy_version} for the batch of version {ledger.train_version} or later. Choose "
                "one that promises no more than the run's, or another --at."
            )
        ledger.reserve(group.id, group.policy_version, source=group.source)
        if group.state == "occupied":
            ledger.occupy(group.id)
    state.ledger = ledger


def in_words(comparison: Comparison) -> str:
    """The comparison as text, several lines."""
    rows = [("own", comparison.own), ("other", comparison.other)]
    how = "from version 0, as another bound cannot take over in the middle,"
    if comparison.at_s is not None:
        how = f"on from {comparison.at_s:.1f} s"
    lines = [
        f"Simulated {how} for {STEPS} train steps:",
        f"{'strategy':<10}{'tokens/s':>12}{'staleness mean':>16}{'max':>5}"
        f"{'trainer idle':>14}{'rollout idle':>14}",
    ]
    if comparison.itself is not None:
        rate, age = comparison.itself
        what = "what really came of it" if comparison.at_s is None else "what really followed, to its end"
        lines.append(f"{'the run':<10}{rate:>12.1f}{age:>16.2f}   ({what})")
    for name, w in rows:
        idle = f"{w.trainer_idle:>14.0%}{w.rollout_idle:>14.0%}"
        lines.append(f"{name:<10}{w.tokens_per_s:>12.1f}{w.staleness_mean:>16.2f}{w.staleness_max:>5}{idle}")
    ratio = comparison.other.tokens_per_s / max(comparison.own.tokens_per_s, 1e-9)
    lines.append(f"other / own: {ratio:.2f} of the throughput")
    return "\n".join(lines)
