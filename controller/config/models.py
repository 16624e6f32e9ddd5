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
from controller.config.sections.staleness import StalenessSettings
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
    machine, at the price of one disk sync per group of events; `off`, none: no run.db is written, so there is
    no resume, replay or story."""
    journal: Literal["full", "compact"] = "full"
    """`compact` deletes events that two snapshots cover, so that run.db stays small in a run of weeks;
    `replay` and `story` then begin there. `full` keeps about 100 bytes per event."""
    private: bool = False
    """Let only this user read the run directory: folders 0700, files 0600. Off: that holds for keys and for
    files with prompts and responses (run.db, logs, files that workers leave to their successors);
    checkpoints, metrics and the configuration follow the umask."""


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
    they use the same devices in turn; each moves its weights, KV cache and optimizer state off them before
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

        A field that does not accept such a text (a number, one of several words) keeps its value, and so does
        one that names a reward: the core knows the parts that workers tell by these names.
        """
        if not self._spellings:
            return self
        config = type(self).model_validate_json(self.model_dump_json())  # what fails below, fails by the text
        for path, text in self._spellings.items():
            tree = json.loads(config.model_dump_json())
            put(tree, path, text)
            with contextlib.suppress(ValidationError):
                changed = type(self).model_validate_json(json.dumps(tree))
                config = changed if changed.reward_names == self.reward_names else config
        return config

    @property
    def filters_by_turn(self) -> bool:
        """Whether `staleness.filter` judges groups by the advantages of their turns, not by rewards."""
        return self.agent.turn_rewards and self.staleness.filter == "zero_variance"

    @property
    def is_colocated(self) -> bool:
        """Whether instances and trainer use the same devices, in turn."""
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
