"""A core that was frozen and thawed is the same core; its image holds nothing that runs."""

import msgpack
import pytest

from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.durability.image.classes import CLASSES
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.simulation import Simulation
from protocol.errors import LocalError
from tests.simulation.test_simulated_runs import config


def some_core(events: int = 150) -> Core:
    simulation = Simulation(config(), seed=3, check_every=1)
    with pytest.raises(RuntimeError):
        simulation.run(max_events=events)
    return simulation.core


def test_an_image_of_a_thawed_core_is_the_same_image():
    core = some_core()
    image = Freezer().freeze(core)
    assert Freezer().freeze(thaw(image, load_strategies(config()))) == image


def test_what_was_one_object_is_one_object_again():
    core = thaw(Freezer().freeze(some_core()), load_strategies(config()))
    state = core.state
    parts = [core.dispatch, core.reports, core.pulls, core.migrations, core.scoring, core.training]
    assert all(part.state is state for part in parts)
    assert core.migrations.views is core.dispatch.views
    assert core.membership.training is core.training
    running = [(i, id) for i in state.registry.instances() for id in i.running]
    assert running
    assert all(state.groups[id.group].members[id.member].peer == i.peer for i, id in running)


def test_a_second_image_has_what_changed_since_the_first():
    freezer, core = Freezer(), some_core()
    first = freezer.freeze(core)
    core.state.registry.forgive(core.state.now, 0.0)
    core.state.now += 1.0
    assert thaw(freezer.freeze(core), load_strategies(config())).state.now == core.state.now
    assert thaw(first, load_strategies(config())).state.now == core.state.now - 1.0


def test_functions_are_never_in_an_image_but_come_from_the_configuration():
    core = some_core()
    image = Freezer().freeze(core)
    strategies = load_strategies(config())
    assert thaw(image, strategies).state.strategies is strategies
    shapes, _ = msgpack.unpackb(image, strict_map_key=False)
    assert {name for name, _ in shapes} <= CLASSES.keys()


@pytest.mark.parametrize("kept", [lambda rewards: True, Simulation, load_strategies(config())])
def test_a_part_that_keeps_a_function_of_its_own_is_refused(kept):
    """Strategies come in by one door, or a thawed core would decide by what only the frozen one had."""
    core = some_core()
    core.scoring.keep = kept
    with pytest.raises(LocalError, match=r"A core holds .*, which no image can hold"):
        Freezer().freeze(core)


def test_an_object_that_no_image_can_hold_is_refused_by_name():
    core = some_core()
    core.state.prompt_tokens = object()
    with pytest.raises(LocalError, match=r"object object.*MODULES in durability/image/classes\.py"):
        Freezer().freeze(core)
