"""Runs with lost, late and doubled messages, crashes and misfortunes, by seed: every promise is checked."""

import random
import traceback
from collections import Counter
from typing import NamedTuple

from controller.config.models import Config
from controller.simulation import Faults
from tests.simulation.test_simulated_runs import config
from tests.support.fault_host import FaultySimulation, Plagues, trained_once
from tests.support.random_rules import random_rules
from tests.support.survivors import SurvivingSimulation

STEPS, GROUPS = 5, 3

FAULTS = Faults(
    rollout_kills=0.12, reward_kills=0.06, hang_share=0.3, stragglers=0.05, straggler_s=5.0, slow_links=0.05
)
PLAGUES = Plagues(
    controller_deaths=0.006, trainer_deaths=0.004, wiped=0.3, snapshots=0.02, lost=0.03, doubled=0.03,
    late=0.05, late_s=0.5, pauses_s=12.0,
)  # fmt: skip


class Verdict(NamedTuple):
    """One run."""

    failure: str  # "" if every promise was kept
    counts: Counter[str]  # what was done to it
    events: int


def settings_of(seed: int) -> Config:
    """A small run under rules drawn from the seed."""
    rng = random.Random(f"rules/{seed}")
    made = config(steps=STEPS, batch_groups=GROUPS, group_size=3, instances=2, **random_rules(rng))
    staleness, checkpoint_steps = made.staleness, rng.choice([0, 1, 2, 3])
    streams = rng.random() < 0.5 and staleness.ledger == "deadlines" and not staleness.spare_groups
    trainer = made.trainer.model_copy(update={"checkpoint_steps": checkpoint_steps, "streaming": streams})
    slow = made.simulation.model_copy(update={"train_base_s": 0.5, "train_token_s": 0.01})
    patient = made.controller.model_copy(update={"respawns": 500})
    sections = {"trainer": trainer, "controller": patient}
    return made.model_copy(update=sections | ({"simulation": slow} if streams else {}))


def may_drop(settings: Config) -> bool:
    """Whether the rules themselves give prompts up."""
    staleness = settings.staleness
    return staleness.filter != "none" or staleness.spare_groups > 0 or staleness.ledger == "floor"


def check(simulation: FaultySimulation, settings: Config) -> None:
    """Raises: AssertionError if the run did not end well, lost a prompt, or broke the bound."""
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    set_aside = outcome.summary["counts"].get("prompts/set_aside", 0)  # type: ignore[attr-defined]
    gives_up = may_drop(settings) or set_aside > 0
    steps = len(outcome.lines) if gives_up and "data ended" in outcome.reason else settings.run.steps
    groups = trained_once(simulation, steps=steps)
    if set_aside and not may_drop(settings):  # its scorers were killed again and again: named, not lost
        assert 0 <= settings.run.steps * GROUPS - set_aside - len(groups) < GROUPS, "a prompt was lost"
    elif not may_drop(settings):
        assert groups == list(range(settings.run.steps * GROUPS)), "a prompt was lost"
    closed = [text for text in outcome.warnings if " was closed: " in text]
    assert not closed, f"an honest worker was closed: {closed[0]}"
    lines = [line["step"] for line in outcome.lines]
    assert lines == list(range(1, len(lines) + 1)), f"lines {lines}"
    if simulation.core.state.ledger.is_strict:
        assert outcome.summary["staleness/violations"] == 0, "the bound was broken"


def one(seed: int, *, crash_at: int | None = None) -> Verdict:
    """One run under all faults, or under one crash alone."""
    settings = settings_of(seed)
    prompts = STEPS * GROUPS * (4 if may_drop(settings) else 1)
    is_single = crash_at is not None
    simulation = SurvivingSimulation(
        settings, seed=seed, prompts=prompts, check_every=3, crash_at=crash_at,
        plagues=Plagues(snapshots=0.05) if is_single else PLAGUES, faults=None if is_single else FAULTS,
    )  # fmt: skip
    failure = ""
    try:
        check(simulation, settings)
    except (AssertionError, RuntimeError, KeyError, ValueError, IndexError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"seed {seed}: {type(error).__name__} at {place.name}:{place.lineno}: {error}"
    counts = Counter(simulation.counts)
    counts["trajectories_kept"] = simulation.core.state.accounts.counts["trajectories/kept"]
    return Verdict(failure, counts, simulation.outcome.events)


def every_boundary(seed: int, *, stride: int = 1) -> tuple[int, list[str]]:
    """Crashes of the controller at every `stride`th event, each in a run of its own; and what failed."""
    settings = settings_of(seed)
    whole = SurvivingSimulation(settings, seed=seed, prompts=STEPS * GROUPS * 4, plagues=Plagues())
    events = whole.run_through().events
    verdicts = [one(seed, crash_at=event) for event in range(1, events, stride)]
    return len(verdicts), [verdict.failure for verdict in verdicts if verdict.failure]
