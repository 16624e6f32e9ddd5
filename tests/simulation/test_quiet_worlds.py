"""Worlds in which, at some event, nothing ran and nobody was awaited, each for a reason that is cured."""

import pytest

from tests.simulation.oracle.host import Host
from tests.simulation.oracle.world import draw

WORLDS = {
    67: "a trainer that came back was not asked to publish the version that it holds",
    91: "nor to publish a version again that was lost with its host",
    258: "instances on other hosts than a trainer that got ready pulled with somebody's next beat",
    597: "a local worker that was told to end for getting ready too late was no reason",
    602: "an admission rule that closes when its last group leaves made nobody pull before the next beat",
    1291: "the next evaluation began one event after the one before was given up",
}


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_reason_to_be_alive_is_there_after_every_event(world):
    Host(draw(world)).run()  # it checks after each, without grace
