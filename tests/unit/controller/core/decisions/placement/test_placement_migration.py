"""What leaves its place before its time, through the core: an engine's queue beyond `phi_wait`."""

import pytest

from protocol import messages
from protocol.messages import Delta, Generated
from tests.support.placing_run import Run


def crowded(*, phi_wait, waiting, resident=95, migration="gap"):
    """Two instances; the engine of the first says that so many of its trajectories wait in it."""
    run = Run(instances=0, group_size=4, prompts=2, batch_groups=2, staleness={
        "max_staleness": 0, "mu": 0.0, "routing": "least_requests", "phi_wait": phi_wait,
        "migration": migration,
    })  # fmt: skip
    run.join("first", capacity=8, kv_tokens=100, version=0)
    queued = tuple((*id, route.attempt) for id, (_, route) in run.routes.items())[-waiting:]
    run.join("second", capacity=8, version=0)
    run.status("first", 1, waiting=waiting, resident=resident, queued=queued)
    return run, queued


def test_what_waits_in_a_full_engine_beyond_phi_wait_is_called_back_and_goes_elsewhere():
    run, queued = crowded(phi_wait=1, waiting=3)
    (interrupt,) = run.sent(messages.Interrupt)
    assert interrupt.attempts == queued
    assert run.core.state.accounts.counts["returned"] == 3
    deltas = tuple(Delta(*attempt, 0, 0, 0, "interrupt") for attempt in queued)
    run.say("first", Generated.of(deltas))
    assert {run.routes[attempt[:2]][0] for attempt in queued} == {"second"}


def test_it_is_called_back_once():
    run, queued = crowded(phi_wait=1, waiting=3)
    run.status("first", 2, waiting=3, resident=95, queued=queued)
    assert not run.sent(messages.Interrupt)


@pytest.mark.parametrize(
    "story",
    [
        {"phi_wait": 3, "waiting": 3},  # no more than it may be
        {"phi_wait": 1, "waiting": 3, "resident": 50},  # it waits for its turn, not for KV
        {"phi_wait": 1, "waiting": 3, "migration": "none"},
    ],
)
def test_a_queue_that_is_short_or_moves_by_itself_is_left_alone(story):
    run, _ = crowded(**story)
    assert not run.sent(messages.Interrupt)
    assert not run.core.state.accounts.counts["returned"]


def test_an_instance_that_pulls_keeps_its_queue():
    run, queued = crowded(phi_wait=5, waiting=3)
    instance = run.core.state.registry.workers["first"]
    instance.pulling = 1
    run.core.state.config = run.core.state.config.model_copy(
        update={"staleness": run.core.state.config.staleness.model_copy(update={"phi_wait": 1})}
    )
    run.status("first", 2, waiting=3, resident=95, queued=queued)
    assert not run.sent(messages.Interrupt)


def test_nothing_leaves_a_fast_instance_for_one_whose_rows_are_all_taken():
    run = Run(instances=0, group_size=42, prompts=1, response=20_000, staleness={
        "max_staleness": 0, "mu": 0.0, "routing": "least_requests", "migration": "gap",
    })  # fmt: skip
    run.join("small", capacity=2, kv_tokens=10**6, version=0)
    run.join("large", capacity=64, kv_tokens=10**6, version=0)
    for (group, member), (peer, route) in list(run.routes.items()):
        run.say(peer, Generated.of((Delta(group, member, route.attempt, 0, 1000, 0, None),)))
    for sequence in range(1, 6):
        for peer in ("small", "large"):
            run.say(peer, messages.Beat(), at=run.now + 0.1)
            run.status(peer, sequence)
    assert [peer for peer, _ in run.routes.values()].count("small") == 2
    assert not run.core.state.accounts.counts["migrations"]
