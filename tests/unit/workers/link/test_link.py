"""When a link beats: to fill a silence of either end, and not where both have spoken."""

import asyncio

import pytest

from protocol.errors import RunError
from protocol.messages import Beat, MachineUse, Retire
from workers.link.link import MEASURE_S, Link

BEAT_S = 100.0


@pytest.fixture
async def link():
    made = Link("tcp://127.0.0.1:1", "rollout")
    made.sent = []
    made._connection.send = lambda message, frames=(): made.sent.append(type(message))
    made._beat_s, made.lease_s = BEAT_S, 1_000.0
    made._beat()  # the first says what the process takes
    made.sent.clear()
    yield made
    await made.aclose()


def pass_time(link: Link, seconds: float) -> None:
    link._timer.cancel()
    for moment in ("_beaten_at", "_said_at", "_heard_at", "_due_at"):
        setattr(link, moment, getattr(link, moment) - seconds)


async def test_a_silent_worker_beats(link):
    link._take(Retire(1), ())
    pass_time(link, 60.0)
    link._take(Retire(2), ())
    pass_time(link, 40.0)
    link._beat()
    assert link.sent == [Beat]


async def test_a_worker_that_hears_nothing_beats_for_an_answer(link):
    pass_time(link, 60.0)
    link.send(Retire(1))
    pass_time(link, 40.0)
    link._beat()
    assert link.sent == [Retire, Beat]


async def test_who_has_spoken_with_the_other_needs_no_beat_until_one_is_silent_for_so_long(link):
    pass_time(link, 60.0)
    link.send(Retire(1))
    pass_time(link, 10.0)
    link._take(Retire(2), ())
    pass_time(link, 30.0)
    link._beat()
    assert link.sent == [Retire]
    assert link._due_at - asyncio.get_running_loop().time() == pytest.approx(BEAT_S - 40.0, abs=1.0)
    pass_time(link, 60.0)
    link._beat()
    assert link.sent == [Retire, Beat]


async def test_what_the_process_takes_is_said_however_busy_the_link_is(link):
    link._measured_at -= MEASURE_S
    pass_time(link, BEAT_S)
    link.send(Retire(1))
    link._take(Retire(2), ())
    link._beat()
    assert link.sent == [Retire, MachineUse]


async def test_a_stall_of_the_worker_is_not_held_against_the_controller(link):
    pass_time(link, 5_000.0)
    link._beat()
    assert link.sent == [Beat]
    assert link._closed is None


async def test_a_stall_gives_no_credit_to_a_controller_that_was_heard_at_its_end(link):
    pass_time(link, 5_000.0)
    link._take(Retire(1), ())  # it came during the stall, and is read before the beat that is late
    link._beat()
    pass_time(link, 1_001.0)
    link._due_at = asyncio.get_running_loop().time()
    link._beat()
    assert link._closed is not None, "it has been silent for longer than the lease"


async def test_what_ends_a_worker_from_beside_it_wakes_it_and_is_raised_where_it_receives(link):
    link._take(Retire(1), ())
    waiting = asyncio.ensure_future(link.receive())
    await waiting
    waiting = asyncio.ensure_future(link.receive())
    link.fail(RunError("The process beside it has died."))
    with pytest.raises(RunError, match="process beside it has died"):
        await waiting
    link.send(Retire(2))  # its last words
    assert link.sent == [Retire]
