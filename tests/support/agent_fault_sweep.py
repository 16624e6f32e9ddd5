"""Runs of agents under every fault at once: environments, workers of each role, links, controllers.

Invariant: all rules and faults of a run are drawn from its seed, so that a seed reproduces a failure.
"""

import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from controller.config.models import Config
from controller.simulation import Faults
from protocol.messages import TrainItem
from tests.simulation.test_simulated_runs import config
from tests.support.fault_sweep import PLAGUES, Verdict, check
from tests.support.random_rules import random_rules
from tests.support.survivors import SurvivingSimulation

STEPS, GROUPS = 3, 3
FAULTS = Faults(
    rollout_kills=0.06, reward_kills=0.03, agent_kills=0.1, hang_share=0.3, stragglers=0.05, straggler_s=5.0,
    slow_links=0.05,
)  # fmt: skip
PLAGUES_OF_AGENTS = replace(PLAGUES, controller_deaths=0.004)
MANY = 10_000  # retries: no prompt is set aside, so that a lost one is seen


class AgentSimulation(SurvivingSimulation):
    """Looks at each trajectory that goes to the trainer."""

    def _record(self, message, trainer) -> None:
        for item in message.items:
            check_item(item)
        super()._record(message, trainer)


def check_item(item: TrainItem) -> None:
    """Given and sampled runs follow each other, from a given one to a sampled one. Raises: AssertionError."""
    runs = [segment.is_given for segment in item.segments]
    assert item.prompt_tokens == 0, item
    assert runs[0], f"it begins with a sampled run: {item}"
    assert not runs[-1], f"it ends with a given run: {item}"
    assert not any(a and b for a, b in pairwise(runs)), f"a turn is missing: {item}"
    attempts = [segment.attempt for segment in item.segments]
    assert attempts == sorted(attempts), item
    given = [segment.attempt for segment in item.segments if segment.is_given]
    sampled = [segment.attempt for segment in item.segments if not segment.is_given]
    assert len(set(given)) == len(given), item
    assert not set(given) & set(sampled), f"a given run has the number of a sampled one: {item}"


def agentic(settings: Config, environment: dict[str, float], **agent: object) -> Config:
    """The same run, with an agent whose environments are simulated."""
    tree = settings.model_dump()
    tree["simulation"]["environment"] |= environment
    tree["agent"] |= {"function": "simulated", **agent}
    tree["rollout"] |= {"max_prompt_tokens": 400}
    return Config.model_validate(tree, strict=False)


def settings_of(seed: int) -> Config:
    """A small run under rules drawn from the seed."""
    rng = random.Random(f"agents/{seed}")
    rules = random_rules(rng) | {"stragglers": "wait"}
    made = config(steps=STEPS, batch_groups=GROUPS, group_size=3, instances=2, **rules)
    trainer = made.trainer.model_copy(update={"checkpoint_steps": rng.choice([0, 1, 2, 3])})
    patient = made.controller.model_copy(update={"respawns": 500})
    environment = {
        "turns": rng.choice([1, 2, 4]),
        "given_tokens": rng.choice([4, 20]),
        "wait_s": rng.choice([0.0, 0.3, 2.0]),
        "sigma": rng.choice([0.5, 1.5]),
        "start_s": rng.choice([0.0, 1.0]),
        "failure_rate": rng.choice([0.0, 0.05]),
        "hang_rate": rng.choice([0.0, 0.02]),
        "divergence_rate": rng.choice([0.0, 0.0, 0.3]),
        "fork_rate": rng.choice([0.0, 0.0, 0.2, 0.5]),
    }
    agent = {
        "workers": 2,
        "concurrency": rng.choice([6, 64]),
        "max_turns": rng.choice([3, 16]),
        "turn_timeout_s": 15.0,
        "start_timeout_s": 20.0,
        "episode_timeout_s": rng.choice([40.0, 600.0]),
        "on_timeout": rng.choice(["score", "retry"]),
        "on_limit": rng.choice(["score", "zero"]),
        "retries": MANY,
        "max_consecutive_failures": MANY,
        "replay": rng.choice(["auto", "auto", "never"]),
        "prepare_groups": rng.choice([None, 1, 6]),
        "turn_rewards": rng.random() < 0.3,
    }
    environment["saved_bytes"] = rng.choice([0, 0, 1000])
    agent["max_sampled_tokens"] = rng.choice([0, 0, 0, 40])
    return agentic(made.model_copy(update={"trainer": trainer, "controller": patient}), environment, **agent)


def one(
    seed: int, *, faults: Faults | None = FAULTS, change: Callable[[Config], Config] = lambda config: config
) -> Verdict:
    """One run under all faults. `change`: what its settings become."""
    settings = change(settings_of(seed))
    staleness = settings.staleness
    may_drop = staleness.filter != "none" or staleness.spare_groups > 0 or staleness.ledger == "floor"
    simulation = AgentSimulation(
        settings,
        seed=seed,
        prompts=STEPS * GROUPS * (4 if may_drop else 1),
        plagues=PLAGUES_OF_AGENTS,
        faults=faults,
    )
    failure = ""
    try:
        check(simulation, settings)
    except (AssertionError, RuntimeError, KeyError, ValueError, IndexError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames[:-4:-1])
        failure = f"seed {seed}: {type(error).__name__} at {place}: {error}"
    counts = Counter(simulation.counts)
    done = simulation.core.state.accounts.counts
    counts.update({name: count for name, count in done.items() if name.startswith(("episodes/", "ending/"))})
    return Verdict(failure, counts, simulation.outcome.events)
