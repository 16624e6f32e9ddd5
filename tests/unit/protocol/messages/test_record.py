"""Records: equal and hashed by their fields, without anything beside them."""

from typing import get_args

import pytest

from controller.core.commands import Command, Send
from controller.core.events import Event, Received
from protocol.messages import KINDS, Beat, Route, Segment


def route(member: int) -> Route:
    return Route(7, member, 2, 99, 100, (Segment(1, 3, 20),))


def test_records_are_equal_and_hashed_by_their_fields():
    assert route(1) == route(1) != route(2)
    assert len({Send("a", route(1)), Send("a", route(1)), Send("b", route(1)), Received("a", Beat())}) == 3
    assert repr(Received("a", Beat())) == "Received(peer='a', message=Beat())"


@pytest.mark.parametrize(
    "kind", [*KINDS.values(), *get_args(Command), *get_args(Event)], ids=lambda kind: kind.__name__
)
def test_all_that_is_said_happens_or_is_wanted_is_a_record(kind):
    assert kind.__hash__ is not None
    assert "__slots__" in vars(kind), f"{kind.__name__} has a place for what is no field"
    assert not kind.__dataclass_params__.frozen, f"decorate {kind.__name__} with protocol.messages.record"
