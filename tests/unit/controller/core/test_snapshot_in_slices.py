"""A snapshot made in slices says what one piece says, and nothing of workers that left meanwhile."""

import pytest

from controller.simulation import Simulation
from tests.simulation.test_simulated_runs import config


@pytest.fixture
def core():
    simulation = Simulation(config(), seed=3)
    with pytest.raises(RuntimeError):
        simulation.run(max_events=150)
    return simulation.core


def taken(slices, between=lambda: None):
    """How many pauses it made, and its snapshot."""
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return pauses, end.value
        between()
        pauses += 1


@pytest.mark.parametrize("at_once", [1, 2, 1_000])
def test_it_is_the_same_as_in_one_piece(core, at_once):
    pauses, seen = taken(core.snapshot_in_slices(at_once))
    assert seen == core.snapshot()
    assert pauses == len(seen.workers) // at_once


def test_a_worker_that_left_meanwhile_is_left_out(core):
    registered = core.state.registry.workers
    last = next(reversed(registered))
    _, seen = taken(core.snapshot_in_slices(1), lambda: registered.pop(last, None))
    assert seen == core.snapshot()
    assert len(seen.workers) == len(registered) > 0
