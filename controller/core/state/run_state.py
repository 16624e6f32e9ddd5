"""Shared state of the core, and the command buffer of the current step.

Invariant: nothing here decides; each decision changes only what its module names. Fields are kept flat, as
each is read by several decisions.
"""

import random
from collections import Counter, deque
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from controller.config.models import Config
from controller.core.commands import Command, Send, Warn
from controller.core.events import OLD_RULES
from controller.core.state.accounts import Accounts, Stopwatch
from controller.core.state.agents.episodes import Beginnings, Episode
from controller.core.state.batches.contributions import Batch
from controller.core.state.batches.counting_ledger import CountingLedger
from controller.core.state.batches.disposal import Disposal
from controller.core.state.batches.in_order_ledger import InOrderLedger
from controller.core.state.batches.windows import Windows
from controller.core.state.dispatch_queue import DispatchQueue
from controller.core.state.groups import Group, Trajectory
from controller.core.state.leases import Leases
from controller.core.state.ledger import Ledger
from controller.core.state.policy_versions import PolicyVersions
from controller.core.state.recent_failures import RecentFailures
from controller.core.state.registry import Registry
from controller.core.state.source_mixture import Mixture
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Message
from strategies.cost_model import COST_MODELS, QWEN_7B_TP1, load_coefficients
from strategies.instance_kinds import InstanceKinds
from strategies.kinds import Strategies
from strategies.lengths import LengthModel
from strategies.pacing import Pace, first_cap
from strategies.views import KNOBS, Settings

Device = Literal["own", "changing", "rollout", "trainer"]
Side = Literal["rollout", "trainer"]
SIDES = ("rollout", "trainer")  # roles that hold the device of a colocated run in turn
MAX_COUNTED = 64  # kinds of counted warnings that are told apart: strangers can make up any name
FIRST_HORIZON_S = 3600.0  # horizon before the duration of a train step is known: new weights always pay


class Pause(NamedTuple):
    """A pause by an operator."""

    who: str
    why: str
    since_s: float

    def in_words(self, now: float) -> str:
        """A sentence for people that also says how to end the pause."""
        why = f" ({self.why})" if self.why else ""
        return (
            f"{self.who} has paused the run {now - self.since_s:.0f} s ago{why}; "
            "`launch.py control RUN unpause` goes on."
        )


class RunState:
    """The state of one run."""

    device: Device
    """Which side may use the device of a colocated run; "own" in any other run."""
    device_figures: dict[str, int | float]
    """Metrics of the device of a colocated run since it began: changes of side, and memory in use.

    A count is an int: of `dict[str, float]` a compiled core makes 4.0 of it, which is another command.
    """

    def __init__(self, config: Config, strategies: Strategies) -> None:
        self.config = config
        self.strategies = strategies
        """The strategies that decisions ask; the only attribute that no image of a core holds."""
        named = config.staleness.cost_model in COST_MODELS
        self.coefficients = QWEN_7B_TP1 if named else load_coefficients(config.staleness.cost_model)
        """Cost model of an instance that has no fit of its own."""
        self.now = self.asleep_s = 0.0  # asleep_s: total time in which the controller itself was stalled
        self.events = 0  # absorbed events
        self.registry = Registry()
        self.device, self.device_figures = "changing" if config.is_colocated else "own", {}
        self.groups: dict[int, Group] = {}
        self.mixture, self.windows = Mixture(config.data, config.run.seed), Windows()
        self.ledger = make_ledger(config)
        self.fresh: deque[int] = deque()
        """Encoded groups that have not started, in the order in which they will."""
        self.rows: deque[int] = deque()  # groups whose episodes have not begun, in the order of prompts
        self.unbegun: dict[tuple[int, int], None] = {}  # (group, episode) that wait for an agent worker
        self.beginnings = Beginnings(is_replaying=config.agent.replay == "auto")
        self.environments: Leases[Episode] = Leases()  # episodes that wait for theirs; in `awake_s`
        self.queue, self.held_out_queue = DispatchQueue(), DispatchQueue()
        """Trajectories that wait for an instance; those to held-out prompts have a queue of their own."""
        self.versions = PolicyVersions()
        self.accounts, self.failures = Accounts(config.staleness.max_staleness), RecentFailures()
        self.lengths = LengthModel(config.rollout.max_response_tokens)
        self.prompt_tokens = 1  # tokens of the last encoded prompt, taken as the size of fresh ones
        self.completed: list[Group] = []  # complete groups that are not queued for scoring yet
        self.gated = Stopwatch()  # while an admitted fresh group finds no instance
        self.instance_kinds = InstanceKinds(self.coefficients)
        self.batches, self.disposal = dict[int, Batch](), Disposal()
        """Batches a trainer may have to repeat, by `train_version`, oldest first; and what is to be freed."""
        self.lost_attempts: list[TrajectoryId] = []  # of instances that died, not counted yet
        self.pace = Pace(first_cap(**_bounds(config)))
        self.started = 0  # started groups, without those that were withdrawn or removed
        self.pulled_version = self.started_at_pull = self.in_system_at_pull = 0
        self.strategy_settings = Settings(**knobs(config))
        self.epoch, self.rules = 1, OLD_RULES  # controller processes so far; what `Started` says
        self.steps = 0  # train steps finished
        self.ending: str | None = None  # why the run is to end; None while it goes on
        self.ending_is_success = True
        self.is_stopped = False  # whether the operator asked for the end, before another reason came up
        self.finished = False
        self.paused: Pause | None = None
        self.orders = 0  # obeyed orders of operators
        self.is_save_wanted = False  # an operator wants a checkpoint of the next version that may be saved
        self.still_since: float | None = None  # since when the run stands still, in `awake_s`
        self.is_trainer_given_up = False  # whether the end no longer waits for an external trainer
        self._out: list[Command] = []
        self._warned: set[str] = set()
        self._counted: Counter[str] = Counter()

    @property
    def awake_s(self) -> float:
        """Seconds since the run began in which the controller was not stalled; limits count these."""
        return self.now - self.asleep_s

    @property
    def window_groups(self) -> int:
        """Groups of a window that the sampler orders; 0: prompts start in the order of the data."""
        staleness = self.config.staleness
        is_ordered = staleness.sampler == "in_order"
        return 0 if is_ordered else staleness.sampler_batches * self.config.trainer.batch_groups

    def learn_lengths(self, group: Group) -> None:
        """Learn the lengths of responses to a prompt from a complete training group."""
        if self.window_groups:
            self.windows.generated(group)
            if not group.is_cut_short:
                self.windows.lengths.observe(group.prompt, group.source, group.response_lengths)

    @property
    def is_all_occupied(self) -> bool:
        """Whether every training group in the system waits for its batch."""
        return all(group.state == "occupied" for group in self.groups.values() if not group.is_evaluation)

    def emit(self, command: Command) -> None:
        """Add to the commands of this step."""
        self._out.append(command)

    def send(self, peer: PeerId, message: Message) -> None:
        """Add a message to the commands of this step."""
        worker = self.registry.workers.get(peer)
        if worker is not None:
            worker.told.tell(message, self.now)
        self._out.append(Send(peer, message))

    def warn_once(self, kind: str, text: str) -> None:
        """Warn the operator, the first time that a warning of this kind comes up."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._out.append(Warn(text))

    def warn_counted(self, kind: str, text: str) -> None:
        """Warn the 1st, 10th, 100th ... time, for kinds of warnings that may come at any rate.

        Beyond MAX_COUNTED kinds, all new ones are counted as one.
        """
        if kind not in self._counted and len(self._counted) >= MAX_COUNTED:
            kind = ""
        self._counted[kind] += 1
        count = self._counted[kind]
        if count == 10 ** (len(str(count)) - 1):
            self._out.append(Warn(f"{text} (time {count} of its kind)" if count > 1 else text))

    @property
    def is_asking(self) -> bool:
        """Whether this step has given commands so far."""
        return bool(self._out)

    def take_commands(self) -> list[Command]:
        """Take the commands of this step."""
        out, self._out = self._out, []
        return out

    def end(self, reason: str, *, is_success: bool, spoils: bool = False) -> None:
        """Bring the run to its end; the first reason counts.

        `spoils`: a failure that counts also behind a good end, as that end cannot be saved.
        """
        if self.ending is None:
            self.ending, self.ending_is_success = reason, is_success
        elif spoils and self.ending_is_success:
            self.ending, self.ending_is_success = f"{self.ending} {reason}", False

    def seed(self, group: Group, trajectory: Trajectory) -> int:
        """The seed of a trajectory's sampling noise.

        A function of the run's seed, the trajectory's id, and how often its prompt was started;
        of an agent also of its trial and its turn.
        """
        number, member = trajectory.id
        again = f"/{group.starts}" if group.starts > 1 else ""
        if group.episodes:
            again = f"/{group.episode_of(member).trial}.{trajectory.turns}"
        return noise(f"{self.config.run.seed}/{number}.{member}{again}", self.rules)

    def environment_seed(self, group: Group) -> int:
        """The seed that a group's environments are told: the same for all its episodes, in each trial.

        Of a held-out prompt it is the same in every evaluation.
        """
        name = (
            f"environment/evaluation/{group.source_row}" if group.is_evaluation else f"environment/{group.id}"
        )
        return noise(f"{self.config.run.seed}/{name}", OLD_RULES)  # as `launch.py eval` draws it

    def requeue(self, trajectory: Trajectory) -> None:
        """Queue a trajectory of a started group for an instance."""
        if trajectory.is_evaluation:
            self.held_out_queue.push(trajectory, 0)
        else:
            self.queue.push(trajectory, self.ledger.deadline(trajectory.id.group))

    def queue_of(self, group: Group) -> DispatchQueue:
        """The queue for trajectories of this group."""
        return self.held_out_queue if group.is_evaluation else self.queue

    def expected_tokens(self, group: Group, trajectory: Trajectory) -> int:
        """Predicted length of the whole response; its length so far if prediction is off."""
        if not self.strategy_settings.uses_prediction:
            return trajectory.response_tokens
        finished = () if group.episodes else group.finished_lengths  # of agents, turns are predicted
        begun_at = trajectory.turn_start
        expected = round(self.lengths.total(trajectory.response_tokens - begun_at, finished))
        most = trajectory.most or self.longest_response(group)
        return begun_at + (expected if expected < most else most)

    def keep_lengths_up(self, trajectory: Trajectory) -> None:
        """The side effect of `expected_tokens` on the length model, for a trajectory that has just ended."""
        if self.strategy_settings.uses_prediction:
            self.lengths.keep_up(trajectory.turn_tokens)

    def most_tokens(self, group: Group, trajectory: Trajectory) -> int:
        """Token limit of a response; of an agent's, of its turn."""
        return trajectory.most or self.longest_response(group)

    def longest_response(self, group: Group) -> int:
        """Token limit of responses of this group: that of its source, if it has one, or of the run.

        Turns of agents have limits of their own.
        """
        config = self.config
        if config.data.sources and not group.is_evaluation and not config.agent.is_on:
            own = config.data.sources[group.source].max_response_tokens
            if own:
                return own
        return config.rollout.max_response_tokens

    def refresh_settings(self, fresh: int = 0) -> Settings:
        """Update the settings that strategies see; `fresh`: groups that may start."""
        newest = self.versions.newest.policy_version if self.versions.newest else 0
        spare = self.config.staleness.spare_responses
        self.strategy_settings = self.strategy_settings._replace(
            newest_version=newest,
            fresh=fresh * (self.config.rollout.group_size + spare),
            typical_tokens=self.prompt_tokens + round(self.lengths.total(0)),
            horizon_s=self.pace.period_s if self.pace.period_s is not None else FIRST_HORIZON_S,
            is_batch_ready=self.ledger.train_version > newest or self.ledger.is_ready(),
        )
        return self.strategy_settings


_sources: list[random.Random] = []  # idle generators of `noise`


def noise(name: str, rules: int) -> int:
    """52 bits, a function of the name alone.

    By OLD_RULES they are `Random(name).getrandbits(52)`, which would be seeded twice.
    """
    if rules > OLD_RULES:
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 12
    source = _sources.pop() if _sources else random.Random(0)
    source.seed(name)
    bits = source.getrandbits(52)
    _sources.append(source)
    return bits


def make_ledger(config: Config) -> Ledger | CountingLedger:
    """An empty ledger, of the kind that the configuration names."""
    if config.trainer.is_supervised:  # nothing is generated ahead, so nothing gets stale
        return Ledger(max_staleness=0, batch_groups=config.trainer.batch_groups)
    if config.staleness.ledger == "deadlines":
        return Ledger(**_bounds(config))
    if config.staleness.ledger == "in_order":
        bound, size = config.staleness.max_staleness, config.trainer.batch_groups
        return InOrderLedger(max_staleness=bound, batch_groups=size)
    return CountingLedger(config.staleness.ledger, **_bounds(config))


def _bounds(config: Config) -> dict[str, int]:
    staleness = config.staleness
    return {
        "max_staleness": staleness.max_staleness,
        "batch_groups": config.trainer.batch_groups,
        "spare_groups": staleness.spare_groups,
    }


def knobs(config: Config) -> dict[str, Any]:  # of the types that `Settings` names
    """The fields of `Settings` that the configuration gives."""
    return {field: getattr(config.staleness, key) for field, key in KNOBS.items()}
