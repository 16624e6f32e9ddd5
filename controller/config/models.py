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
from protocol.rewards.kinds import entry_of
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
"""Those that need no import path."""


def _plain_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("expected a plain folder name such as `quickstart`; its parent is run.dir")
    return name


class RunSettings(Section):
    """The run as a whole."""

    name: Annotated[str, AfterValidator(_plain_name)] = "run"
    """Names the run directory."""
    dir: str = "runs"
    """Folder that run directories are made in."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the order of prompts, the sampling noise and the initial model."""
    steps: int = Field(default=100, ge=1)
    """Train steps to make."""
    resume: str = Field(default="auto", min_length=1)
    """What to do when the run directory holds a run. `auto`: go on with one that is not finished, with the
    same settings, and set a finished one aside; `never`: set it aside and start over; the path of a run
    directory, such as one that was set aside: go on with that one, where it is; or the path of a
    checkpoint (`RUN/checkpoints/step_20`) of another run: begin from its weights, at version 0."""
    durability: Literal["off", "process", "power"] = "process"
    """What the run survives: `process`, the kill of any process; `power`, also the loss of the machine, at
    the price of one disk sync per group of events and per published version; `off`, nothing: no run.db is
    written, so there is no resume, replay or story."""
    journal: Literal["full", "compact"] = "full"
    """`compact` deletes events that two snapshots cover, so that run.db stays small in a run of weeks;
    `replay` and `story` then begin there. `full` keeps about 100 bytes per event."""
    private: bool = False
    """Make everything in the run directory for this user only: folders 0700, files 0600. Off, that holds for
    keys and for what shows prompts and responses (run.db, logs, what workers leave to their successors);
    checkpoints, metrics and the configuration follow the umask."""


class StalenessSettings(Section):
    """How far rollout may run ahead of training, and how work is placed."""

    max_staleness: int = Field(default=2, ge=0, le=64)
    """Hard bound, in policy versions: no trajectory is trained whose oldest token is older than this. 0 is
    synchronous; 1 to 3 gives nearly all of the speed (the paper's eta)."""
    strategy: Literal[
        "staleflow", "sync", "one_step", "areal", "roll_flash", "verl_async", "nemo_rl", "prime_rl", "greedy"
    ] = "staleflow"
    """Preset of the keys below; a key that is written out counts instead. The others are the rules of other
    systems on this engine. `areal`, `verl_async` do not promise the bound; their violations are counted.
    `prime_rl` is without that system's gate on its dispatcher's lead and its limit of rollouts in flight, so
    it starts and drops more."""
    in_flight_batches: float | Literal["auto", "all"] = "auto"
    """Groups in the system, in batches; a number counts them until the version that they made is published.
    `auto` finds the fewest that keep the speed (docs/freshness.md), `all` takes whatever the bound admits
    (then the mean staleness is about the bound)."""
    objective: Literal["throughput", "fresh"] | Annotated[float, Field(ge=0, le=1)] = "throughput"
    """What `in_flight_batches: auto` looks for: all of the speed (`throughput`), or a mean staleness of at
    most 1, whatever the bound (`fresh`, which turns `trainer.streaming` on where it is exact). A number is
    between them: the share of throughput that a version of mean age has to bring, by the fitted speed of
    instances. docs/freshness.md has what age brings."""
    admission: str = "window"
    """Rule for how many groups may start: `window` (in_flight_batches), `one_batch`, `areal`, `roll_flash`,
    `prime_rl` (whatever has room), `verl_async`, or an import path of a function like those of
    strategies/admission.py."""
    ledger: Literal["deadlines", "in_order", "arrival", "completion", "floor"] = "deadlines"
    """Order and promise of batches: `deadlines` keeps the bound by reservation; so does `in_order`, which
    names the batch of a group when it starts and waits for just these; `arrival` and `completion` take what
    started, or ended, first, however old; `floor` drops what grew too old."""
    routing: str = "marginal_gain"
    """`marginal_gain`, `least_requests`, `group_affine`, `round_robin`, or an import path of a function like
    those of strategies/routing.py."""
    mu: float = Field(default=0.3, ge=0, le=1)
    """Marginal-gain routing leaves a trajectory queued while its gain everywhere is under mu times that on an
    idle instance. 0: it starts wherever there is room."""
    adaptive_mu: bool = True
    """Lower mu while it keeps groups back for long, while the trainer waits for groups rather than for
    stragglers, and where many responses are about as long as the longest. `mu` is the most that it comes back
    to."""
    synchronization: str = "gain"
    """When an instance pulls: `gain` (when new weights are worth the prefill), `greedy` (at once), `status`
    (when it has thinned out), `every_few`, or an import path of a function like those of
    strategies/synchronization.py."""
    indicator: Literal["requests", "throughput", "kv"] = "kv"
    """What `status` looks at: running trajectories, tokens/s, share of the KV cache."""
    indicator_threshold: float = Field(default=0.6, ge=0)
    """`status` pulls at or under this value of the indicator."""
    guard: bool = False
    """Pull a version only when the batch that updates it is ready, so that the trainer does not starve."""
    sync_steps: int = Field(default=4, ge=1)
    """`every_few` pulls versions that are multiples of this."""
    partial_rollout: bool = True
    """Interrupt what runs when an instance pulls, and go on with it under the new weights. Off: wait until it
    ends."""
    keep_kv: bool = False
    """Swap weights under running trajectories, which keep the KV of the old ones: no prefill is repeated, at
    the price of attention to keys that the new weights would not have made."""
    migration: str = "gap"
    """What moves between instances: `gap` (wide gaps in throughput, and the longest responses off devices
    that are slower by themselves), `benefit` (that, and the longest responses to where they end sooner),
    `none`, or an import path of a function like those of strategies/migration.py."""
    phi_wait: int = Field(default=3, ge=0)
    """An instance whose own queue is longer than this gives those that wait back."""
    phi_throughput: float = Field(default=5.0, ge=1)
    """Ratio of the throughputs of two instances above which trajectories move."""
    length_prediction: bool = True
    """Let routing and migration use predicted response lengths (siblings, tokens so far)."""
    affinity: bool = True
    """Let routing count the prefill that a turn of an agent saves at the instance of the turn before, which
    may still have its keys and values: its home, with a price and no pin."""
    urgency: float = Field(default=5.0, ge=0)
    """Worth of a token per second of a trajectory that is short of time, relative to any other, where routing
    decides whom new work slows down. Needs length prediction."""
    cost_model: str = "online"
    """Speed of instances: `online` (fitted from the reports of all that are alike), `published` (a 7B model
    on one GPU), or a JSON file made by `launch.py profile`, whose content takes its place when the
    configuration is read."""
    decide_s: float = Field(default=0.1, gt=0)
    """Seconds between two decisions to pull lazily or to migrate."""
    pacing: str = "adaptive"
    """What finds the cap of `in_flight_batches: auto`, and the mu of routing, after each train step:
    `adaptive`, `fixed` (they stay as they begin), or an import path of a function like those of
    strategies/pacing.py."""
    pace: float = Field(default=0.0, ge=0, lt=1)
    """A train step begins no sooner after the last than this share of the mean time between two, so that
    instances are not crowded now and empty later. 0: as soon as a batch is ready."""
    sampler: str = "in_order"
    """Which groups make a batch: `in_order` (of the data), `similar_length` (prompts whose responses are
    expected to be about equally long, so that the long ones do not stretch every batch; see docs/batches.md),
    `similar_length_shuffled` (such batches in a random order), or an import path of a function like those of
    strategies/batches/samplers.py."""
    sampler_batches: int = Field(default=8, ge=2, le=256)
    """Batches of a window, in which a sampler may reorder prompts: a batch alone is biased, a window is not.
    So many batches of prompts are read ahead."""
    stragglers: Literal["wait", "retry", "truncate"] = "wait"
    """What to do with groups that alone keep the trainer waiting at their deadline: wait; start the prompt
    again under new weights; or end the responses where they are."""
    straggler_groups: int = Field(default=4, ge=0)
    """`retry` and `truncate` act when at most so many groups are missing."""
    spare_responses: int = Field(default=0, ge=0)
    """Responses started per prompt beyond `rollout.group_size`; the first to end are kept, which favours
    short ones."""
    spare_groups: int = Field(default=0, ge=0)
    """Groups started per batch beyond `trainer.batch_groups`; a batch waits for no straggler then, and what
    is too late is dropped."""
    filter: str = "none"
    """`none`; `zero_variance` drops groups whose rewards are all equal, or with `agent.turn_rewards` those in
    which no turn has advantages that differ (no two turns, with `agent.turn_advantages` of your own). Each is
    replaced by one fresh prompt. Or an import path of a function like those of strategies/filtering.py."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        return with_preset(values) if isinstance(values, dict) else values


class ControllerSettings(Section):
    """The controller process."""

    bind: str = "auto"
    """Where workers attach: `auto` is a Unix socket in the run directory; or `ipc://PATH`,
    `tcp://127.0.0.1:PORT`; or with `keys`, `tcp://0.0.0.0:PORT` for other machines."""
    keys: str = ""
    """Folder of keys that `launch.py keygen` made. With it every connection with the controller is
    encrypted and every worker shows a key that is in the folder; without it only this machine can attach."""
    reattach_s: float = Field(default=300.0, ge=0)
    """Seconds for which workers that were attached by hand look for a controller that is gone; enough for a
    person to start it again. Rollout workers go on generating what they have meanwhile, and the next
    controller waits `lease_s` for them before it gives that to others; a trainer starts over from the newest
    checkpoint. 0: they end at once."""
    beat_s: float = Field(default=1.0, gt=0)
    """Seconds between signs of life."""
    lease_s: float = Field(default=10.0, gt=0)
    """Seconds of silence after which a worker is lost and its work goes elsewhere; at least 3 beats."""
    attach_timeout_s: float = Field(default=180.0, gt=0)
    """Seconds that a local worker may take from start to Ready."""
    replace_s: float = Field(default=45.0, gt=0)
    """Seconds that the run waits for another worker when the last one of a role was closed because it broke
    the protocol; then it ends, and can be taken up again."""
    respawns: int = Field(default=5, ge=0)
    """Times in a row, without progress, that a local worker is started again before the run ends."""
    fork_workers: bool = True
    """Fork local workers from one process that has imported torch: they start seconds sooner and share its
    memory. Only on Linux, with the engines `torch` and `fsdp`, where no accelerator is in use; elsewhere,
    and if false, each worker is a process of its own from the beginning."""
    stuck_s: float = Field(default=300.0, ge=1)
    """Seconds for which a run may stand still: nothing runs, no instance pulls, and nobody is awaited, as
    when a strategy of your own lets nothing start. Then it ends and says what could have gone on. More than
    `rollout.status_s`; waits for a worker or for the data do not count, however long they are."""


class SampleSettings(Section):
    """Trained groups whose text is kept in run.db, for `launch.py samples`.

    The core chooses them: of every four the two with the widest spread of rewards, one at random, and the
    oldest.
    """

    groups: int = Field(default=4, ge=0, le=4096)
    """Groups of each step: prompt, all responses with the logprobs they were sampled with, rewards,
    advantages and versions. 0 keeps no text. Needs run.db (`run.durability` other than `off`)."""
    mb: int = Field(default=512, ge=1, le=1_048_576)
    """Room for them in run.db, in MiB; beyond it the samples of the oldest steps are deleted."""
    held_out: int = Field(default=0, ge=0, le=4096)
    """Held-out prompts of each evaluation that are kept, too: those with responses under
    `evaluation.threshold`, the lowest rewards first."""


class LoggingSettings(Section):
    """What a person sees."""

    console: Literal["auto", "rich", "plain", "quiet"] = "auto"
    """`auto`: a live display on a terminal, plain lines elsewhere."""
    level: Literal["debug", "info", "warning"] = "info"
    """Detail of the log files."""
    trackers: tuple[str, ...] = ()
    """Who else gets the lines of metrics.jsonl, each step once: `tensorboard` (a folder in the run directory;
    needs no package), `wandb` (offline unless WANDB_MODE says otherwise), `module:function` or
    `file.py:function` of your own. In a process of their own, which the run does not notice."""


class NotifySettings(Section):
    """Who hears how the run goes, from the same process as trackers."""

    url: str = ""
    """A webhook that gets a JSON object (`text`, `content`, `run`, `event`, `cause`, `message`), as Slack,
    Discord and programs read it, or of a host named ntfy the plain text. `${NAME}` keeps it out of files."""
    command: tuple[str, ...] = ()
    """A program with arguments, which gets run, event and text as three more."""
    events: tuple[Literal["done", "failed", "stuck", "alarm"], ...] = ("done", "failed", "stuck", "alarm")
    """What of; the same cause at most once an hour."""


class ViewSettings(Section):
    """The pages that show the run in a browser, in a process of their own beside the controller."""

    start: Literal["auto", "off"] = "auto"
    """`auto`: the run prints a link, at which a process waits that does nothing until a page is opened, and
    nothing again five minutes after the last. `off`: no link; `launch.py view RUN` still shows the run."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of this machine that it listens at. 0: the run's last one, or the first free one from 8470 on."""
    controls: bool = True
    """Whether the pages may give orders to the run, as `launch.py control` does; false: they only show."""
    keyframes_mb: int = Field(default=128, ge=1, le=65536)
    """Memory of the view for images of the run's past, in MiB: the more, the shorter a jump in time takes."""


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
        """Why a batch cannot be trained in parts, by field: what needs all of it, what never waits for it."""
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
        """The same, which knows by path (keys and indices) where `${NAME}` stood."""
        config = self.model_copy()
        config._spellings = dict(spellings)
        return config

    def as_written(self) -> Self:
        """With `${NAME}` where it stood, for all that is kept of a run: the environment may hold secrets.

        What the models refuse so (a number, one of several words) keeps its value.
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
        """Whether `staleness.filter` is asked about advantages of turns, and not about rewards."""
        return self.agent.turn_rewards and self.staleness.filter == "zero_variance"

    @property
    def is_colocated(self) -> bool:
        """Whether instances and trainer share one device, and work in turn."""
        return self.placement == "colocated"

    @property
    def is_cut(self) -> bool:
        """Whether responses are drawn from a part of the vocabulary, so that kept sets travel with them."""
        return self.rollout.sampling.is_cut and not self.trainer.is_supervised

    @property
    def reward_names(self) -> tuple[str, ...]:
        """What rewards of this run may be called, in metrics."""
        held_out = self.evaluation.reward_function
        entries = [*self.reward.entries, *([entry_of(held_out)] if held_out else [])]
        return tuple(dict.fromkeys(entry.label for entry in entries))

    @property
    def local_instances(self) -> list[str]:
        """Names of the rollout workers that the controller starts itself."""
        return [f"rollout-{i}" for i in range(self.rollout.instances)]
