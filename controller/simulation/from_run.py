"""Predicts a run with other settings in virtual time, from its own journal.

Invariants: lengths, speeds and times are those that the run reported; beside each prediction are the same
simulation with the run's own settings and the real measurement, so that the error of the model is visible.
Changes of the strategy alone can take over at a moment of the run; another bound or fleet begins again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.config.load import change_config
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.history.compare_strategies import other_config
from controller.simulation.host import Simulation
from controller.simulation.measured import Measured
from controller.simulation.records import Window
from controller.simulation.whatif import (
    ENDLESS,
    STEPS,
    Tell,
    figures,
    go_on,
    measure,
    refuse,
    use_lengths,
)
from protocol.errors import ConfigError

MAY_CHANGE = (
    "staleness.", "rollout.instances", "rollout.max_running", "reward.workers", "reward.processes",
    "reward.concurrency", "trainer.batch_groups", "simulation.",
)  # fmt: skip
"""Keys whose effect is simulated."""
UNKNOWN = {
    "staleness.sampler": "which prompts come again is not among what is simulated, so all orders are one",
    "staleness.filter": "simulated rewards are noise, which no filter drops as it dropped the run's",
    "simulation.workload.": "the lengths are those of the run's responses",
}
"""Beginnings of keys among these whose effect cannot be simulated from a run, and why."""
MOST_WARNINGS = 10  # most that are printed
LENGTH_OF_PROMPTS = "simulation.workload.prompt_tokens="  # may be changed


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run as measured, as simulated, and as simulated with changes."""

    changes: tuple[str, ...]
    at_s: float | None  # None: both simulations began at version 0
    run: tuple[float, float] | None  # tokens per second and mean staleness, measured
    own: Window
    changed: Window | None  # None: nothing was changed
    warnings: tuple[str, ...] = ()  # of the simulated runs, each once

    @property
    def error(self) -> float | None:
        """Relative error of the simulated tokens per second against the measured ones."""
        return None if self.run is None else self.own.tokens_per_s / max(self.run[0], 1e-9) - 1

    def as_json(self) -> dict[str, Any]:
        """The prediction as JSON for programs."""
        return {
            "changes": list(self.changes),
            "at_s": self.at_s,
            "steps": STEPS,
            "run": None if self.run is None else {"tokens_per_s": self.run[0], "staleness_mean": self.run[1]},
            "own": asdict(self.own),
            "changed": None if self.changed is None else asdict(self.changed),
            "error": self.error,
            "warnings": list(self.warnings),
        }


def predict(
    recording: Recording,
    changes: Sequence[str],
    *,
    at_s: float | None = None,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Prediction:
    """The run's own settings and the changed ones, simulated for STEPS train steps.

    `at_s`: the moment at which a changed strategy takes over; for other changes both simulations begin again.
    Raises: ConfigError if a change cannot be simulated, RunError if the run is too short.
    """
    own = recording.config()
    changed = changed_config(own, changes)
    refuse(own, own, at_s=None)
    if at_s is not None and not changes:
        raise ConfigError(
            "--at is the second from which something else decides, and nothing is changed; give a change, "
            "such as staleness.routing=round_robin, or leave --at out."
        )
    warnings = dict[str, None]()

    def warn(text: str) -> None:
        warnings.setdefault(text)

    tell("reading what the run reported")
    measured = measure(recording)
    if changes and at_s is not None and _may_take_over(own, changed, changes):
        found = go_on(recording, changed, at_s=at_s, measured=measured, seed=seed, tell=tell, warn=warn)
        return Prediction(tuple(changes), found.at_s, found.itself, found.own, found.other, tuple(warnings))
    cells = {"own": ()} | ({"changed": tuple(changes)} if changes else {})
    bounds = (own.staleness.max_staleness, changed.staleness.max_staleness)
    skip, windows = max(bounds) + 2, dict[str, Window]()
    for name, more in cells.items():
        windows[name] = start_over(
            recording, measured, more, name=name, skip=skip, seed=seed, tell=tell, warn=warn
        )
    itself = measured.itself(0.0)
    return Prediction(tuple(changes), None, itself, windows["own"], windows.get("changed"), tuple(warnings))


def changed_config(own: Config, changes: Sequence[str]) -> Config:
    """The run's configuration with the changes.

    Raises: ConfigError if one is not of MAY_CHANGE, or of UNKNOWN.
    """
    foreign = [change for change in changes if not change.startswith(MAY_CHANGE)]
    if foreign:
        raise ConfigError(
            f"{foreign[0]!r} changes what a simulation of the run knows nothing of. Expected keys of "
            f"{', '.join(key.rstrip('.') for key in MAY_CHANGE)}."
        )
    for change in changes:
        why = next((UNKNOWN[key] for key in UNKNOWN if change.startswith(key)), "")
        if why and not change.startswith(LENGTH_OF_PROMPTS):
            raise ConfigError(
                f"What {change} would change cannot be known from a run: {why}. Leave it out here; "
                "`launch.py simulate CONFIG.yaml` has a workload of its own to try it on."
            )
    of_strategy = [change for change in changes if change.startswith("staleness.")]
    preset = next((c.partition("=")[2] for c in of_strategy if c.startswith("staleness.strategy=")), None)
    rest = [change for change in of_strategy if not change.startswith("staleness.strategy=")]
    config = other_config(own, preset, rest)
    return change_config(config, [change for change in changes if change not in of_strategy])


def start_over(
    recording: Recording,
    measured: Measured,
    changes: Sequence[str],
    *,
    name: str,
    skip: int,
    seed: int = 0,
    tell: Tell = lambda text: None,
    warn: Tell = lambda text: None,
) -> Window:
    """Simulate the run from version 0 on workers like its own, with changes. Raises: RunError if it fails."""
    workers = [f"rollout.instances={measured.instances}", f"reward.workers={measured.text_workers}"]
    limits = [f"run.steps={STEPS}", f"controller.respawns={ENDLESS}", "trainer.local=true"]
    changed = changed_config(recording.config(), [c for c in changes if c.startswith("staleness.")])
    others = [change for change in changes if not change.startswith("staleness.")]
    cluster = measured.cluster(recording.path)
    config = change_config(changed, [*cluster, *workers, *limits, *others])
    strategies = recording.strategies(config)
    simulation = Simulation(config, seed=seed, with_digest=False, strategies=strategies)
    use_lengths(simulation, config, measured.lengths, seed)
    bound = config.staleness.max_staleness
    return figures(simulation, measured, name, bound=bound, skip=skip, tell=tell, warn=warn)


def _may_take_over(own: Config, changed: Config, changes: Sequence[str]) -> bool:
    """Whether only the strategy changes and the bound stays, so that groups in flight keep their places."""
    is_strategy = all(change.startswith("staleness.") for change in changes)
    return is_strategy and changed.staleness.max_staleness == own.staleness.max_staleness


def in_words(prediction: Prediction) -> str:
    """The prediction as text, several lines."""
    at = "from version 0" if prediction.at_s is None else f"on from {prediction.at_s:.1f} s"
    head = f"{'':<22}{'tokens/s':>12}{'staleness mean':>16}{'max':>5}{'trainer idle':>14}{'rollout idle':>14}"
    lines = [f"Simulated {at} for {STEPS} train steps, with lengths, speeds and times of the run:", head]
    if prediction.run is not None:
        rate, age = prediction.run
        lines.append(f"{'the run, measured':<22}{rate:>12,.1f}{age:>16.2f}")
    rows = [("the run, simulated", prediction.own), ("changed, simulated", prediction.changed)]
    for name, w in rows:
        if w is not None:
            idle = f"{w.trainer_idle:>14.0%}{w.rollout_idle:>14.0%}"
            lines.append(
                f"{name:<22}{w.tokens_per_s:>12,.1f}{w.staleness_mean:>16.2f}{w.staleness_max:>5}{idle}"
            )
    if prediction.error is not None:
        lines.append(f"The simulation of the run itself is off by {prediction.error:+.1%} of its tokens/s.")
    if prediction.changed is not None:
        gain = prediction.changed.tokens_per_s / max(prediction.own.tokens_per_s, 1e-9) - 1
        lines.append(f"With {' '.join(prediction.changes)}: {gain:+.1%} tokens/s.")
    lines += [f"warning: {text}" for text in prediction.warnings[:MOST_WARNINGS]]
    if (more := len(prediction.warnings) - MOST_WARNINGS) > 0:
        lines.append(f"There are {more} more warnings, which are not told.")
    return "\n".join(lines)
