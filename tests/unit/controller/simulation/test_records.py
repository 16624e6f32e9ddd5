"""What is recorded of a simulated run from outside of the core."""

from collections import Counter

from controller.config.models import Config
from controller.simulation import Simulation, window


def test_the_age_and_the_tokens_of_an_episode_are_those_that_the_policy_sampled():
    config = Config.model_validate(
        {
            "run": {"steps": 6},
            "agent": {"function": "simulated"},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 200, "max_running": 8},
            "trainer": {"batch_groups": 4},
            "staleness": {"max_staleness": 1},
        }
    )
    outcome = Simulation(config, seed=1).run()
    assert outcome.is_success, outcome.reason
    ages = Counter[str]()
    for start in outcome.starts:
        ages.update({str(age): count for age, count in start.ages.items()})
    assert ages == outcome.summary["staleness/hist"]
    assert sum(start.response_tokens for start in outcome.starts) == outcome.summary["tokens/trained"]
    figures = window(outcome.starts, max_staleness=1, skip=1)
    assert figures is not None
    assert (figures.violations, figures.staleness_max) == (0, 1)
