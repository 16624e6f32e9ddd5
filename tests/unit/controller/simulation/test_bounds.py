"""The linear program against the printed bounds of the study that it follows."""

from dataclasses import replace

import pytest

from controller.config.models import Config
from controller.simulation.bounds import Demand, hardware_bound, shortest_period_s, throughput_bound
from controller.simulation.simulated_workers import distribution_of
from workers.simulated.workload import classes

PRINTED = {  # hardware, then max_staleness 0, 1, 3
    ("lognormal", 16384): (6.61, 2.79, 4.45, 5.86),
    ("bimodal", 24000): (4.16, 1.59, 2.46, 3.38),
    ("power_law", 40960): (4.27, 1.15, 2.00, 3.01),
    ("uniform", 8192): (7.88, 4.80, 6.63, 7.52),
}


def cluster(kind, cap, *, max_staleness=0, pull_s=0.0, publish="early", **engine) -> Config:
    return Config.model_validate(
        {
            "rollout": {"instances": 16, "group_size": 1, "max_response_tokens": cap, "max_running": 4096},
            "trainer": {"batch_groups": 512},
            "staleness": {"max_staleness": max_staleness},
            "simulation": {
                "workload": {"kind": kind}, "pull_s": pull_s, "publish": publish, "engine": engine
            },
        }
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "cap"), PRINTED)
def test_the_bounds_are_the_printed_ones_within_three_percent(kind, cap):
    hardware, *bounds = PRINTED[kind, cap]
    assert hardware_bound(cluster(kind, cap)) == pytest.approx(hardware, rel=0.03)
    for max_staleness, bound in zip((0, 1, 3), bounds, strict=True):
        config = cluster(kind, cap, max_staleness=max_staleness)
        assert in_equal_classes(config) == pytest.approx(bound, rel=0.03)


def in_equal_classes(config: Config) -> float:
    """The bound with the lengths in 50 equally likely classes, as that study has them."""
    lengths = tuple(classes(distribution_of(config).sample(), 50))
    demand = replace(Demand.of(config), classes=lengths)
    return demand.batch / shortest_period_s(demand, config.staleness.max_staleness)


def test_an_open_tail_in_fine_classes_lowers_the_bound_where_the_longest_decide():
    config = cluster("power_law", 40960)
    assert throughput_bound(config) < 0.97 * in_equal_classes(config)


def test_more_staleness_or_speed_never_lowers_the_bound_and_honesty_never_raises_it():
    bounds = [throughput_bound(cluster("uniform", 8192, max_staleness=s)) for s in range(4)]
    assert bounds == sorted(bounds)
    honest = throughput_bound(cluster("uniform", 8192, max_staleness=1, publish="honest", pull_s=3.0))
    assert honest < bounds[1]
    assert throughput_bound(cluster("uniform", 8192, max_staleness=1, speeds=(1.0, 2.0))) > bounds[1]
