"""What is recorded of a simulated run from outside of the core."""

from collections import Counter

from controller.config.models import Config
from controller.simulation import Simulation, window
from controller.simulation.records import Load


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


class OneIsKilled(Simulation):
    """The first instance dies after 20 s, and starts again slowly."""

    def run(self, **limits):
        self._on(20.0, self._kill_the_first)
        return super().run(**limits)

    def _kill_the_first(self):
        self._kill(next(process for process in self._processes.values() if process.name == "rollout-0"))


def test_an_instance_keeps_its_column_of_the_load_when_its_process_is_another():
    config = Config.model_validate(
        {
            "run": {"steps": 6},
            "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 400, "max_running": 16},
            "trainer": {"batch_groups": 4},
            "simulation": {"attach_s": 30.0},
        }
    )
    simulation = OneIsKilled(config, seed=1)
    load: Load = simulation.run().load
    gone = [row for at, row in zip(load.times, load.running, strict=True) if 22 < at < 45]
    assert gone
    assert all(first == 0 for first, _ in gone), "the load of the other one is in the column of the dead one"
    assert any(second > 0 for _, second in gone)
