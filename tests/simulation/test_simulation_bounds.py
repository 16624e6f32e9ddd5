"""More staleness, more speed and an open tail move the bound as they have to."""

from controller.simulation.bounds import throughput_bound
from tests.support.published_study import bound_in_equal_classes, bounded_cluster


def test_an_open_tail_in_fine_classes_lowers_the_bound_where_the_longest_decide():
    config = bounded_cluster("power_law", 40960)
    assert throughput_bound(config) < 0.97 * bound_in_equal_classes(config)


def test_more_staleness_or_speed_never_lowers_the_bound_and_honesty_never_raises_it():
    bounds = [throughput_bound(bounded_cluster("uniform", 8192, max_staleness=s)) for s in range(4)]
    assert bounds == sorted(bounds)
    honest = throughput_bound(bounded_cluster("uniform", 8192, max_staleness=1, publish="honest", pull_s=3.0))
    assert honest < bounds[1]
    assert throughput_bound(bounded_cluster("uniform", 8192, max_staleness=1, speeds=(1.0, 2.0))) > bounds[1]
