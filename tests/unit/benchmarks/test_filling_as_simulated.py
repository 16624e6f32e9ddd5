"""How busy instances can be, as it is said beforehand, beside simulated runs."""

import pytest

from benchmarks.agent_filling import busy_share, changed, run
from benchmarks.agent_homes import INSTANCES, config_for
from controller.cli.planning.filling import filling

POINTS = 0.03


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "bound", "rows"), [(0.6, 2, 8), (0.6, 1, 8), (0.8, 2, 12)])
def test_what_is_said_is_within_three_points_of_what_is_simulated(share, bound, rows):
    config = changed(config_for(share, bound, 30, "price"), "rollout", max_running=rows)
    assert busy_share(run(config), INSTANCES * rows) == pytest.approx(filling(config).busy, abs=POINTS)
