"""The linear program against the printed bounds of the study that it follows."""

import pytest

from controller.simulation.bounds import hardware_bound
from tests.support.published_study import bound_in_equal_classes, bounded_cluster

PRINTED = {  # hardware, then max_staleness 0, 1, 3
    ("lognormal", 16384): (6.61, 2.79, 4.45, 5.86),
    ("bimodal", 24000): (4.16, 1.59, 2.46, 3.38),
    ("power_law", 40960): (4.27, 1.15, 2.00, 3.01),
    ("uniform", 8192): (7.88, 4.80, 6.63, 7.52),
}


@pytest.mark.parametrize(("kind", "cap"), PRINTED)
def test_the_bounds_are_the_printed_ones_within_three_percent(kind, cap):
    hardware, *bounds = PRINTED[kind, cap]
    assert hardware_bound(bounded_cluster(kind, cap)) == pytest.approx(hardware, rel=0.03)
    for max_staleness, bound in zip((0, 1, 3), bounds, strict=True):
        config = bounded_cluster(kind, cap, max_staleness=max_staleness)
        assert bound_in_equal_classes(config) == pytest.approx(bound, rel=0.03)
