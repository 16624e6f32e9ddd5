"""The configuration of a run: one frozen, strict pydantic model that is also its reference manual."""

import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from controller.config.cluster import ClusterSettings
from controller.config.data import DataSettings
from controller.config.evaluation import EvaluationSettings
from controller.config.limits import LimitSettings
from controller.config.simulation import SimulationSettings
from controller.config.variables import put
from protocol.agents.settings import AgentSettings
from protocol.algorithms import SAMPLING
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    Section,
    TrainerSettings,
    WeightsSettings,
)
from strategies.presets import with_preset

TRACKERS = ("tensorboard", "wandb")
"""Trackers that need no import path."""


def _plain_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("expected a plain folder name such as `quickstart`; its parent is run.dir")
    return name


class RunSettings(Section):
    """Name, folder, length and durability of the run."""

    name: Annotated[str, AfterValidator(_plain_name)] = "run"
    """Name of the run directory."""
    dir: str = "runs"
    """Folder in which run directories are made."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the order of prompts, the sampling noise and the initial model."""
    steps: int = Field(default=100, ge=1)
    """Train steps to make."""
    resume: str = Field(default="auto", min_length=1)
    """What to do if the run directory holds a run. `auto`: go on with an unfinished run, with the same
    settings, and set a finished one aside; `never`: set it aside and start over; the path of a run directory,
    such as one that was set aside: go on with that run, where it is; or the path of a checkpoint
    (`RUN/checkpoints/step_20`) of another run: begin from its weights, at version 0."""
    durability: Literal["off", "process", "power"] = "process"
    """Failures that the run survives: `process`, the kill of any process; `power`, also the loss of the
    machine, at the price of one disk sync per group of events and per published version; `off`, none: no
    run.db is written, so there is no resume, replay or story."""
    journal: Literal["full", "compact"] = "full"
    """`compact` deletes events that two snapshots cover, so that run.db stays small in a run of weeks;
    `replay` and `story` then begin there. `full` keeps about 100 bytes per event."""
    private: bool = False
    """Let only this user read the run directory: folders 0700, files 0600. Off: that holds for keys and for
    files with prompts and responses (run.db, logs, files that workers leave to their successors);
    checkpoints, metrics and the configuration follow the umask."""


class StalenessSettings(Section):
    """How far rollout may run ahead of training, and how work is placed."""

    max_staleness: int = Field(default=2, ge=0, le=64)
    """Hard bound, in policy versions: no trajectory is trained whose oldest token is older than this. 0 is
    synchronous; 1 to 3 gives nearly all of the speed (the paper's eta)."""
    strategy: Literal[
        "staleflow", "sync", "one_step", "areal", "roll_flash", "verl_async", "nemo_rl", "prime_rl", "greedy"
    ] = "staleflow"
    """Preset of the keys below; a key that is set overrides it. Presets other than `staleflow` are the rules
    of other systems on this engine. `areal` and `verl_async` do not promise the bound; their violations are
    counted. `prime_rl` lacks that system's gate on its dispatcher's lead and its limit of rollouts in flight,
    so it starts and drops more."""
    in_flight_batches: float | Literal["auto", "all"] = "auto"
    """Most groups in the system, in batches; a number counts groups until the version that they trained is
    published. `auto` finds the fewest that keep the speed (docs/freshness.md), `all` starts as many as the
    bound admits (then the mean staleness is about the bound)."""
    objective: Literal["throughput", "fresh"] | Annotated[float, Field(ge=0, le=1)] = "throughput"
    """Goal of `in_flight_batches: auto`: all of the speed (`throughput`), or a mean staleness of at most 1,
    whatever the bound (`fresh`, which turns `trainer.streaming` on where it is exact). A number is between
    them: the share of throughput that one more version of mean staleness has to bring, by the fitted speed of
    instances. docs/freshness.md shows how speed depends on staleness."""
    admission: str = "window"
    """Rule for how many groups may start: `window` (in_flight_batches), `one_batch`, `areal`, `roll_flash`,
    `prime_rl` (as many as have room), `verl_async`, or an import path of a function like those of
    strategies/admission.py."""
    ledger: Literal["deadlines", "in_order", "arrival", "completion", "floor"] = "deadlines"
    """Order of batches, and whether they keep the bound: `deadlines` keeps it by reservation; so does
    `in_order`, which assigns a group to its batch at its start and waits for exactly these groups; `arrival`
    and `completion` take the groups that started, or ended, first, however old; `floor` drops groups that
    became too old."""
    routing: str = "marginal_gain"
    """`marginal_gain`, `least_requests`, `group_affine`, `round_robin`, or an import path of a function like
    those of strategies/routing.py."""
    mu: float = Field(default=0.3, ge=0, le=1)
    """Marginal-gain routing leaves a trajectory queued while its gain at each instance is under mu times its
    gain at an idle instance. 0: it starts wherever there is room."""
    adaptive_mu: bool = True
    """Lower mu while it keeps groups back for long, while the trainer waits for groups rather than for
    stragglers, and where many responses are about as long as the longest. `mu` is the highest value to which
    it returns."""
    synchronization: str = "gain"
    """When an instance pulls: `gain` (when new weights are worth the prefill), `greedy` (at once), `status`
    (when few of its trajectories are left), `every_few`, or an import path of a function like those of
    strategies/synchronization.py."""
    indicator: Literal["requests", "throughput", "kv"] = "kv"
    """Load that `status` measures: running trajectories, tokens/s, or share of the KV cache."""
    indicator_threshold: float = Field(default=0.6, ge=0)
    """`status` pulls at or under this value of the indicator."""
    guard: bool = False
    """Pull a version only when the batch that updates it is ready, so that the trainer does not starve."""
    sync_steps: int = Field(default=4, ge=1)
    """`every_few` pulls versions that are multiples of this."""
    partial_rollout: bool = True
    """Interrupt running trajectories when an instance pulls, and go on with them under the new weights. Off:
    wait until they end."""
    keep_kv: bool = False
    """Swap weights under running trajectories, which keep the KV of the old ones: no prefill is repeated, at
    the price of attention to keys that the new weights would not have made."""
    migration: str = "gap"
    """When trajectories move between instances: `gap` (at wide gaps in throughput, and the longest responses
    away from slower devices), `benefit` (as `gap`, and the longest responses to instances where they end
    sooner), `none`, or an import path of a function like those of strategies/migration.py."""
    phi_wait: int = Field(default=3, ge=0)
    """An instance whose own queue is longer than this returns its waiting trajectories."""
    phi_throughput: float = Field(default=5.0, ge=1)
    """Ratio of the throughputs of two instances above which trajectories move."""
    length_prediction: bool = True
    """Let routing and migration use predicted response lengths (siblings, tokens so far)."""
    affinity: bool = True
    """Let routing count the prefill that a turn of an agent saves at the instance of the turn before, which
    may still have its keys and values. The instance is preferred by that saving, never required."""
    urgency: float = Field(default=5.0, ge=0)
    """Worth of a token per second of a trajectory that is short of time, relative to any other, when routing
    weighs which trajectories new work slows down. Needs length prediction."""
    cost_model: str = "online"
    """Speed of instances: `online` (fitted from the reports of all instances of one kind), `published` (a 7B
    model on one GPU), or a JSON file made by `launch.py profile`, whose content replaces its name when the
    configuration is read."""
    decide_s: float = Field(default=0.1, gt=0)
    """Seconds between two decisions to pull lazily or to migrate."""
    pacing: str = "adaptive"
    """Rule that sets the cap of `in_flight_batches: auto`, and the mu of routing, after each train step:
    `adaptive`, `fixed` (they keep their first values), or an import path of a function like those of
    strategies/pacing.py."""
    pace: float = Field(default=0.0, ge=0, lt=1)
    """Least time from one train step to the next, as a share of the mean time between two, so that instances
    are not crowded now and empty later. 0: a step begins as soon as a batch is ready."""
    sampler: str = "in_order"
    """Groups that make a batch: `in_order` (of the data), `similar_length` (prompts whose responses are
    expected to be about equally long, so that long ones do not delay every batch; see docs/batches.md),
    `similar_length_shuffled` (such batches in a random order), or an import path of a function like those of
    strategies/batches/samplers.py."""
    sampler_batches: int = Field(default=8, ge=2, le=256)
    """Batches of a window, within which a sampler may reorder prompts: a single batch is biased, a window is
    not. As many batches of prompts are read ahead."""
    stragglers: Literal["wait", "retry", "truncate"] = "wait"
    """What to do if the trainer waits for a few groups alone, at their deadline: `wait`; `retry`, start the
    prompt again under new weights; or `truncate`, end the responses where they are."""
    straggler_groups: int = Field(default=4, ge=0)
    """`retry` and `truncate` act if at most this many groups are missing."""
    spare_responses: int = Field(default=0, ge=0)
    """Responses started per prompt beyond `rollout.group_size`; the responses that end first are kept, which
    favours short ones."""
    spare_groups: int = Field(default=0, ge=0)
    """Groups started per batch beyond `trainer.batch_groups`; a batch then waits for no straggler, and groups
    that are too late are dropped."""
    filter: str = "none"
    """`none`; `zero_variance` drops groups whose rewards are all equal, or with `agent.turn_rewards` those in
    which no turn has advantages that differ (no two turns, with `agent.turn_advantages` of your own). Each is
    replaced by one fresh prompt. Or an import path of a function like those of strategies/filtering.py."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        return with_preset(values) if isinstance(values, dict) else values


class ControllerSettings(Section):
    """Address, leases and local workers of the controller process."""

    bind: str = "auto"
    """Address at which workers attach: `auto` is a Unix socket in the run directory; or `ipc://PATH`,
    `tcp://127.0.0.1:PORT`; or with `keys`, `tcp://0.0.0.0:PORT` for other machines."""
    keys: str = ""
    """Folder of keys that `launch.py keygen` made. With it every connection with the controller is encrypted,
    and every worker needs a key of the folder; without it only workers of this machine can attach."""
    reattach_s: float = Field(default=300.0, ge=0)
    """Seconds for which workers that were attached by hand look for a lost controller; enough for a person to
    start it again. Rollout workers go on with their trajectories meanwhile, and the next controller waits
    `lease_s` for them before it gives these to others; a trainer starts over from the newest checkpoint. 0:
    they end at once."""
    beat_s: float = Field(default=1.0, gt=0)
    """Seconds between heartbeats of a worker."""
    lease_s: float = Field(default=10.0, gt=0)
    """Seconds of silence after which a worker is lost and its work goes elsewhere; at least 3 beats."""
    attach_timeout_s: float = Field(default=180.0, gt=0)
    """Seconds that a local worker may take from start to Ready."""
    replace_s: float = Field(default=45.0, gt=0)
    """Seconds for which the run waits for another worker after the last one of a role was closed because it
    broke the protocol; then it ends, and can be resumed."""
    respawns: int = Field(default=5, ge=0)
    """Times in a row, without progress, that a local worker is started again before the run ends."""
    fork_workers: bool = True
    """Fork local workers from one process that has imported torch: they start seconds sooner and share its
    memory. Only on Linux, with the engines `torch` and `fsdp`, if no accelerator is in use; elsewhere,
    and if false, each worker is started as a process of its own."""
    stuck_s: float = Field(default=300.0, ge=1)
    """Seconds for which a run may stand still: no trajectory runs, no instance pulls, and no worker is
    awaited, as when a strategy of your own lets no group start. Then the run ends with an error that says
    what could have started. Give more than `rollout.status_s`; waits for a worker or for the data do not
    count, however long they are."""


class SampleSettings(Section):
    """Trained groups whose text is kept in run.db, for `launch.py samples`.

    The core chooses them: of every four the two with the widest spread of rewards, one at random, and the
    oldest.
    """

    groups: int = Field(default=4, ge=0, le=4096)
    """Groups of each step: prompt, all responses with the logprobs they were sampled with, rewards,
    advantages and versions. 0 keeps no text. Needs run.db (`run.durability` other than `off`)."""
    mb: int = Field(default=512, ge=1, le=1_048_576)
    """Most space of samples in run.db, in MiB; beyond it the samples of the oldest steps are deleted."""
    held_out: int = Field(default=0, ge=0, le=4096)
    """Number of held-out prompts of each evaluation whose text is kept, too: those with responses under
    `evaluation.threshold`, the lowest rewards first."""


class LoggingSettings(Section):
    """Output of the console, log files, and trackers."""

    console: Literal["auto", "rich", "plain", "quiet"] = "auto"
    """`auto`: a live display on a terminal, plain lines elsewhere."""
    level: Literal["debug", "info", "warning"] = "info"
    """Detail of the log files."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the lines of metrics.jsonl, each step once: `tensorboard` (a folder in the run
    directory; needs no package), `wandb` (offline unless WANDB_MODE says otherwise), `module:function` or
    `file.py:function` of your own. They run in a process of their own and do not slow the run down."""


class NotifySettings(Section):
    """Notifications about the run, sent by the process of the trackers."""

    url: str = ""
    """URL of a webhook that gets a JSON object (`text`, `content`, `run`, `event`, `cause`, `message`), as
    Slack, Discord and programs read it; if the host is named ntfy, plain text. `${NAME}` keeps it out of
    files."""
    command: tuple[str, ...] = ()
    """A program with arguments, called with three more: run, event and text."""
    events: tuple[Literal["done", "failed", "stuck", "alarm"], ...] = ("done", "failed", "stuck", "alarm")
    """Events that are sent; the same cause at most once an hour."""


class ViewSettings(Section):
    """The pages that show the run in a browser, served by a process beside the controller."""

    start: Literal["auto", "off"] = "auto"
    """`auto`: the run prints a link; the process behind it is idle until a page is opened, and again five
    minutes after the last page was closed. `off`: no link; `launch.py view RUN` still shows the run."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of this machine for the pages. 0: the run's last port, or the first free one from 8470 on."""
    controls: bool = True
    """Whether the pages may give orders to the run, as `launch.py control` does; false: they only show."""
    keyframes_mb: int = Field(default=128, ge=1, le=65536)
    """Memory of the view for snapshots of the run's past, in MiB: the more, the faster a jump in time."""


class Config(Section):
    """A whole run. `launch.py check` validates it and says what would happen."""

    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    reward: RewardSettings = RewardSettings()
    rollout: RolloutSettings = RolloutSettings()
    placement: Literal["separate", "colocated"] = "separate"
    """`separate`: instances and trainer have devices of their own, and work at the same time. `colocated`:
    they share one device and work in turn; each moves its weights, KV cache and optimizer state off it before
    the other begins (docs/colocated.md)."""
    agent: AgentSettings = AgentSettings()
    trainer: TrainerSettings = TrainerSettings()
    weights: WeightsSettings = WeightsSettings()
    staleness: StalenessSettings = StalenessSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    controller: ControllerSettings = ControllerSettings()
    limits: LimitSettings = LimitSettings()
    samples: SampleSettings = SampleSettings()
    logging: LoggingSettings = LoggingSettings()
    notify: NotifySettings = NotifySettings()
    view: ViewSettings = ViewSettings()
    simulation: SimulationSettings = SimulationSettings()
    cluster: ClusterSettings = ClusterSettings()
    _spellings: dict[tuple[Any, ...], str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _sample_as_the_algorithm_does(self) -> Self:
        filter = SAMPLING.get(self.trainer.algorithm)
        if filter is not None and "filter" not in self.staleness.model_fields_set:
            staleness = self.staleness.model_copy(update={"filter": filter})
            object.__setattr__(self, "staleness", staleness)  # it is frozen
        return self

    @model_validator(mode="after")
    def _stream_for_freshness(self) -> Self:
        is_open = "streaming" not in self.trainer.model_fields_set
        can = self.trainer.engine == "fsdp" and not (self.streaming_obstacles or self.is_colocated)
        if self.staleness.objective == "fresh" and is_open and can:
            trainer = self.trainer.model_copy(update={"streaming": True})
            trainer.model_fields_set.discard("streaming")  # nobody wrote it
            object.__setattr__(self, "trainer", trainer)  # it is frozen
        return self

    @property
    def streaming_obstacles(self) -> dict[str, str]:
        """Why a batch cannot be trained in parts, by field that needs all of it or never waits for it."""
        trainer, staleness = self.trainer, self.staleness
        reasons = {
            "trainer.baseline": {
                "batch_mean": "compares rewards with their mean over the batch, which nobody knows before it "
                "is complete; give group_mean, leave_one_out or none",
                "value": "trains a critic, whose own step and values are made of the whole batch; give "
                "group_mean, leave_one_out or none",
            }.get(trainer.baseline, ""),
            "trainer.advantage_scale": "divides advantages by their deviation over the batch, which nobody "
            "knows before it is complete; give group_std or none" * (trainer.advantage_scale == "batch_std"),
            "trainer.minibatches": "makes the gradients of all minibatches but the first with weights that "
            "the one before has changed, which it does once its last group is there; give 1"
            * (trainer.minibatches > 1),
            "trainer.loss": "leaves tokens out by a mean over their micro-batch, which would be one of "
            "others; give another loss" * (trainer.loss == "m2po"),
            "staleness.spare_groups": "starts more groups than a batch takes, and gives up those that come "
            "last, so that no batch waits for a straggler and none of its groups is certain before; give 0"
            * bool(staleness.spare_groups),
            "staleness.ledger": "is not `deadlines`: its batches are whichever groups are there, so they "
            "wait for no straggler and none of their groups is certain before; leave it out"
            * (staleness.ledger != "deadlines"),
            "trainer.algorithm": "is sft, whose responses are all there from the start, so no batch waits; "
            "nothing but trainer.streaming has to be changed" * trainer.is_supervised,
        }
        return {field: reason for field, reason in reasons.items() if reason}

    def with_spellings(self, spellings: Mapping[tuple[Any, ...], str]) -> Self:
        """A copy that keeps, by path (keys and indices), the texts with `${NAME}` that were replaced."""
        config = self.model_copy()
        config._spellings = dict(spellings)
        return config

    def as_written(self) -> Self:
        """The configuration with `${NAME}` unexpanded, for files of a run: variables may hold secrets.

        A field that does not accept such a text (a number, one of several words) keeps its value.
        """
        if not self._spellings:
            return self
        config = type(self).model_validate_json(self.model_dump_json())  # what fails below, fails by the text
        for path, text in self._spellings.items():
            tree = json.loads(config.model_dump_json())
            put(tree, path, text)
            with contextlib.suppress(ValidationError):
                config = type(self).model_validate_json(json.dumps(tree))
        return config

    @property
    def filters_by_turn(self) -> bool:
        """Whether `staleness.filter` judges groups by the advantages of their turns, not by rewards."""
        return self.agent.turn_rewards and self.staleness.filter == "zero_variance"

    @property
    def is_colocated(self) -> bool:
        """Whether instances and trainer share one device, and work in turn."""
        return self.placement == "colocated"

    @property
    def is_cut(self) -> bool:
        """Whether tokens are sampled from a part of the vocabulary, so that its ids travel with them."""
        return self.rollout.sampling.is_cut and not self.trainer.is_supervised

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of all rewards of this run, as in metrics."""
        entries = self.reward.entries_and(self.evaluation.reward_function)
        return tuple(dict.fromkeys(entry.label for entry in entries))

    @property
    def local_instances(self) -> list[str]:
        """Names of the rollout workers that the controller starts itself."""
        return [f"rollout-{i}" for i in range(self.rollout.instances)]
