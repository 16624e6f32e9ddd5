"""Simulated runs under rules drawn at random, all of whose promises are checked."""

import random
import traceback
from typing import Any, NamedTuple

from controller.config.models import Config
from controller.simulation import Faults, Simulation
from tests.simulation.test_simulated_runs import config as small_config

PROMPTS, STEPS = 48, 12  # of 4 groups: the data are the steps, so that a lost prompt is seen
CHECK_EVERY, MAX_EVENTS = 5, 30_000  # a run takes 2,000 to 10,000 events


class Swept(NamedTuple):
    """One run of the sweep."""

    seed: int
    is_strict: bool
    violations: int
    trained: int
    failure: str = ""


def random_rules(rng: random.Random) -> dict[str, Any]:
    """Rules of `staleness`, each drawn at random; in 3 of 10 a preset instead."""
    bound = rng.randrange(5)
    if rng.random() < 0.3:
        name = rng.choice(["sync", "one_step", "areal", "roll_flash", "verl_async", "greedy"])
        return {"strategy": name, "max_staleness": {"sync": 0, "one_step": 1}.get(name, bound)}
    return {
        "max_staleness": bound,
        "partial_rollout": rng.random() < 0.8,
        "keep_kv": rng.random() < 0.3,
        "routing": rng.choice(["marginal_gain", "least_requests", "round_robin", "group_affine"]),
        "synchronization": rng.choice(["gain", "greedy", "status", "every_few"]),
        "sync_steps": rng.choice([1, 2]),
        "migration": rng.choice(["benefit", "gap", "none"]),
        "mu": rng.choice([0.0, 0.3]),
        "pace": rng.choice([0.0, 0.85]),
        "in_flight_batches": rng.choice(["auto", "all", min(1.5, bound + 1)]),
        "stragglers": rng.choice(["wait", "retry", "truncate"]),
        "spare_responses": rng.choice([0, 0, 1, 2]),
        "spare_groups": rng.choice([0, 0, 1]),
        "decide_s": 0.3,
        "guard": rng.random() < 0.2,
        "filter": rng.choice(["none", "none", "zero_variance"]),
        "length_prediction": rng.random() < 0.7,
    }


def sweep(seed: int) -> Swept:
    """One simulated run under random rules and, in half of them, faults; what was wrong, if anything."""
    rng = random.Random(seed)
    rules = random_rules(rng)
    faults = Faults(
        rollout_kills=0.15, reward_kills=0.05, stragglers=0.1, straggler_s=5.0, slow_links=0.05,
        late_share=0.02, late_s=0.3,
    )  # fmt: skip
    tree = small_config(steps=STEPS, **rules)
    patient = tree.controller.model_copy(update={"respawns": 50})
    is_lossless = rules.get("filter", "none") == "none" and not rules.get("spare_groups")
    is_lossless &= tree.staleness.ledger != "floor"
    try:
        return _checked(seed, tree.model_copy(update={"controller": patient}),
                        faults=faults if rng.random() < 0.5 else None, is_lossless=is_lossless)  # fmt: skip
    except (AssertionError, RuntimeError, KeyError, ValueError, IndexError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
        return Swept(seed, True, 0, 0, f"seed {seed}: {type(error).__name__} at {place}: {error}; {rules}")


def _checked(seed: int, config: Config, *, faults: Faults | None, is_lossless: bool) -> Swept:
    """Run it with all checks after every few events. Raises: AssertionError if a promise is broken."""
    prompts = PROMPTS if is_lossless else 4 * PROMPTS
    simulation = Simulation(config, seed=seed, faults=faults, prompts=prompts, check_every=CHECK_EVERY)
    outcome = simulation.run(max_events=MAX_EVENTS)
    trained = [group for batch in outcome.trained for group in batch]
    over = sum(count for start in outcome.starts for age, count in start.ages.items()
               if age > config.staleness.max_staleness)  # fmt: skip
    is_strict = simulation.core.state.ledger.is_strict
    assert outcome.is_success, outcome.reason
    assert len(trained) == len(set(trained)), "a prompt was trained twice"
    assert not is_strict or over == 0, f"{over} trajectories are older than the bound"
    assert not is_lossless or sorted(trained) == list(range(PROMPTS)), "a prompt was lost"
    assert len(outcome.lines) == STEPS or "data ended" in outcome.reason, outcome.reason
    return Swept(seed, is_strict, over, len(trained))
