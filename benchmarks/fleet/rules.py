"""What the processes of a fleet agree on: the options, the configuration, and how long responses are.

Invariant: everything comes out of the options; times of the fleet are emulated seconds, `slow` of real ones.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from typing import Self

from controller.config.models import Config
from protocol.settings import FASTEST_PROGRESS_S, FASTEST_STATUS_S
from workers.simulated import (
    RolloutTimes,
    SimulatedEngine,
    SimulatedRollout,
    StepCost,
    Workload,
    make_distribution,
)

ROOT = Path(__file__).resolve().parents[2]
TASK = ROOT / "tests" / "tasks" / "even_digits.py"
GROUP_SIZE = 16
LONGEST = 8192
PROMPT_TOKENS = 512
TOKENS_PER_S = 25.0  # of each response
GOLDEN = 0.618034  # multiples of it are spread evenly, however many there are
BATCHES = 4  # groups of a batch per instance
SYMBOLS = 12  # tokens of the vocabulary
STEP_S, PULL_S, SCORE_S, PUBLISH_S = 2.0, 1.0, 0.05, 0.5
BEAT_S = 1.0  # the default of `controller.beat_s`
PATIENT_S = 600.0  # more than a busy machine lets a process wait


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that all processes get."""

    instances: int = 16
    running: int = 128
    """Responses at once on each instance."""
    progress_s: str = "0.5"
    """Seconds, or `auto`."""
    status_s: str = "auto"
    """Seconds, or `auto`."""
    slow: float = 1.0
    """Real seconds of an emulated one."""
    durability: str = "process"
    journal: str = "full"
    port: int = 28_617
    batch_groups: int = 0
    """Of a train step; 0: BATCHES per instance."""
    speed: float = 1.0
    """How many times as fast as in a true fleet everything is that workers do."""

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """The options of a command line."""
        for field in fields(cls):
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """What the command line says."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})

    def words(self) -> list[str]:
        """The same as arguments of another process."""
        return [f"--{field.name}={getattr(self, field.name)}" for field in fields(self)]

    @property
    def first_progress_s(self) -> float:
        """Seconds between two reports until the controller says otherwise."""
        return FASTEST_PROGRESS_S if self.progress_s == "auto" else float(self.progress_s)

    @property
    def first_status_s(self) -> float:
        """Seconds between two load reports until the controller says otherwise."""
        return FASTEST_STATUS_S if self.status_s == "auto" else float(self.status_s)

    @property
    def begun_groups(self) -> int:
        """Groups that the instances begin with: these are met in the middle of their responses."""
        return ceil(self.instances * self.running / GROUP_SIZE)


class Begun(Workload):
    """Lengths of which the first groups have a part behind them, so that responses end from the first second
    on, as in a fleet that has run for long."""

    def __init__(self, begun_groups: int) -> None:
        lengths = make_distribution("lognormal", cap=LONGEST, sigma=1.3)
        super().__init__(lengths, seed=0, prompt_tokens=PROMPT_TOKENS)
        self._begun_groups = begun_groups

    def length(self, group: int, member: int, turn: int = 0) -> int:
        whole = super().length(group, member, turn)
        if group >= self._begun_groups:
            return whole
        return ceil(whole * self._uniform(group, GROUP_SIZE + member))


def make_instance(rules: Rules, number: int, *, now: float) -> SimulatedRollout:
    """An instance whose responses get TOKENS_PER_S each, however many there are. Times are emulated.

    Its reports come at moments of its own, as those of a real one.
    """
    per_step = StepCost(1 / (rules.speed * TOKENS_PER_S), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    engine = SimulatedEngine(
        per_step,
        rows=rules.running,
        kv_blocks=rules.running * (LONGEST + PROMPT_TOKENS) // 16,
        token_budget=1 << 20,
        prompt_tokens=PROMPT_TOKENS,
    )
    times = RolloutTimes(
        0.0, PULL_S / rules.speed, rules.first_progress_s, rules.first_status_s, early=number * GOLDEN % 1
    )
    return SimulatedRollout(engine, Begun(rules.begun_groups), times, now=now)


def lay_model(folder: Path) -> Path:
    """A model directory that says how many tokens there are, which is all that the controller asks of it."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"vocab_size": SYMBOLS}))
    return model


def rows() -> Iterator[dict[str, object]]:
    """Prompts without end, of two kilobytes each."""
    number = 0
    while True:
        yield {"prompt": f"{number} ".ljust(4 * PROMPT_TOKENS, "x")}
        number += 1


def config(folder: Path, rules: Rules) -> Config:
    """Of a run whose workers all attach from outside."""
    return Config.model_validate(
        {
            "run": {
                "dir": str(folder),
                "name": "run",
                "steps": 1_000_000,
                "durability": rules.durability,
                "journal": rules.journal,
            },
            "model": {"path": str(lay_model(folder))},
            "data": {"path": f"{TASK}:prompts"},
            "reward": {"function": f"{TASK}:reward", "workers": 0},
            "rollout": {
                "instances": 0,
                "group_size": GROUP_SIZE,
                "max_prompt_tokens": PROMPT_TOKENS,
                "max_response_tokens": LONGEST,
                "max_running": rules.running,
                "progress_s": "auto" if rules.progress_s == "auto" else rules.first_progress_s,
                "status_s": "auto" if rules.status_s == "auto" else rules.first_status_s,
            },
            "trainer": {
                "local": False,
                "batch_groups": rules.batch_groups or BATCHES * rules.instances,
            },
            "staleness": {"max_staleness": 3, "in_flight_batches": "all"},  # no instance waits
            "controller": {
                "bind": f"tcp://127.0.0.1:{rules.port}",
                "beat_s": BEAT_S * max(1.0, rules.slow),  # one of emulated time, as the rest
                "lease_s": PATIENT_S,
                "attach_timeout_s": PATIENT_S,
                "replace_s": PATIENT_S,
            },
            "logging": {"console": "quiet"},
        }
    )
