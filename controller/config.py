"""The configuration: what a run is, as one frozen, strict pydantic model that is also its reference
manual."""

from typing import Literal

from pydantic import Field

from controller.simulation_settings import SimulationSettings
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, Section, TrainerSettings


class RunSettings(Section):
    """The run as a whole."""

    name: str = "run"
    """Names the run directory."""
    dir: str = "runs"
    """Folder that run directories are made in."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the order of prompts, the sampling noise and the initial model."""
    steps: int = Field(default=100, ge=1)
    """Train steps to make."""
    resume: Literal["never"] = "never"
    """What to do when the run directory holds a finished or broken run; `never` sets the old one aside."""


class DataSettings(Section):
    """Prompts."""

    path: str = ""
    """A JSONL file, a directory saved by `datasets.save_to_disk`, or an import path `module:function` or
    `file.py:function` of `prompts(*, seed)` that returns an iterable of dictionaries."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Map of the names that StaleFlow and the reward expect to the names in the data, e.g. `{prompt:
    question}`. `prompt` is a string or a list of chat messages."""
    shuffle: bool = True
    """Shuffle every pass over the data by `run.seed`; an iterable is taken as it comes."""
    epochs: int = Field(default=0, ge=0)
    """Passes over the data; 0 repeats until `run.steps` are made."""


class StalenessSettings(Section):
    """How far rollout may run ahead of training, and how work is placed."""

    max_staleness: int = Field(default=2, ge=0, le=64)
    """Hard bound, in policy versions: no trajectory is trained whose oldest token is older than this. 0 is
    synchronous; 1 to 3 gives nearly all of the speed (the paper's eta)."""
    strategy: Literal["staleflow"] = "staleflow"
    """Preset of admission, routing and synchronization rules."""
    in_flight_batches: float | Literal["auto"] = "auto"
    """Groups in the system, in batches, counted until the version that they made is published. `auto` starts
    whatever the bound allows, which makes the mean staleness equal to the bound; 2 keeps it near 1."""
    routing: str = "marginal_gain"
    """`marginal_gain`, `least_requests`, `round_robin`, or an import path of a function like those of
    strategies/routing.py."""
    mu: float = Field(default=0.3, ge=0, le=1)
    """Marginal-gain routing leaves a trajectory queued when its gain is under mu times that on an idle
    instance."""
    synchronization: str = "greedy"
    """`greedy`, or an import path of a function like those of strategies/synchronization.py."""
    partial_rollout: bool = True
    """Interrupt what runs when an instance pulls, and go on with it under the new weights. Off: wait until it
    ends."""
    filter: str = "none"
    """`none`; `zero_variance` drops groups whose rewards are all equal, each replaced by one fresh prompt; or
    an import path of a function like those of strategies/filtering.py."""


class ControllerSettings(Section):
    """The controller process."""

    bind: str = "auto"
    """Where workers attach: `auto` is a Unix socket in the run directory; or `ipc://PATH`,
    `tcp://127.0.0.1:PORT`."""
    beat_s: float = Field(default=1.0, gt=0)
    """Seconds between signs of life."""
    lease_s: float = Field(default=10.0, gt=0)
    """Seconds of silence after which a worker is lost and its work goes elsewhere; at least 3 beats."""
    attach_timeout_s: float = Field(default=180.0, gt=0)
    """Seconds that a local worker may take from start to Ready."""
    respawns: int = Field(default=5, ge=0)
    """Times in a row, without progress, that a local worker is started again before the run ends."""


class LoggingSettings(Section):
    """What a person sees."""

    console: Literal["auto", "rich", "plain", "quiet"] = "auto"
    """`auto`: a live display on a terminal, plain lines elsewhere."""
    level: Literal["debug", "info", "warning"] = "info"
    """Detail of the log files."""


class Config(Section):
    """A whole run. `launch.py check` validates it and says what would happen."""

    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    reward: RewardSettings = RewardSettings()
    rollout: RolloutSettings = RolloutSettings()
    trainer: TrainerSettings = TrainerSettings()
    staleness: StalenessSettings = StalenessSettings()
    controller: ControllerSettings = ControllerSettings()
    logging: LoggingSettings = LoggingSettings()
    simulation: SimulationSettings = SimulationSettings()


def load_config(path: str, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """The configuration in a YAML file, with `key.path=value` overrides.

    Raises: ConfigError that names every problem at once, each with its nearest valid key.
    """
    from controller.config_file import read_config  # it needs the models above

    return read_config(path, overrides)
