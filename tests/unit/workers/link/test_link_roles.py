"""A worker's link takes the orders of its role, and ends where the controller sends others."""

import pytest

from protocol.messages import Encode, ModelFiles, Retire, Route, Serve
from workers.link.link import Link, LinkClosed


@pytest.mark.parametrize("message", [Route(1, 0, 0, 0, 8, ()), Serve(), Retire(3), ModelFiles((), "digest")])
async def test_orders_of_the_role_and_of_every_role_come_in(message):
    link = Link("tcp://127.0.0.1:1", "rollout")
    try:
        link._take(message, ())
        assert link.receive_nowait() == (message, ())
    finally:
        await link.aclose()


async def test_an_order_of_another_role_ends_the_link_with_words():
    link = Link("tcp://127.0.0.1:1", "rollout")
    try:
        link._take(Encode((1,)), (b"{}",))
        with pytest.raises(LinkClosed, match="Encode is not for a rollout worker") as caught:
            link.receive_nowait()
        assert caught.value.is_fault
    finally:
        await link.aclose()
