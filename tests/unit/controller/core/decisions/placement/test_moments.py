"""Routes because of all events of one moment are bounded; what is left goes on with the next ticks."""

from controller.core.decisions.placement.dispatch import ROUTES_PER_MOMENT, ROUTES_PER_STEP
from controller.core.events import Received, Tick
from controller.core.liveness import ReasonKind, why_alive
from protocol import messages
from protocol.messages import Attach, Beat
from tests.support.placing_run import Run

GROUPS, SIZE, JOINING = 160, 4, 8
WANTED = GROUPS * SIZE


def attached() -> Run:
    """Instances that have attached and are not ready."""
    run = Run(
        instances=0, prompts=2 * GROUPS, group_size=SIZE, batch_groups=GROUPS,
        staleness={"max_staleness": 0, "mu": 0.0, "in_flight_batches": "all"},
    )  # fmt: skip
    for number in range(JOINING):
        name = f"i-{number}"
        run.say(name, Attach("rollout", name, 1, "here"))
    return run


def ready_at_once(run: Run) -> float:
    at = run.now + 0.01
    for number in range(JOINING):
        run.do(Received(f"i-{number}", messages.Ready(0, WANTED // 4, 100_000)), at)
    return at


def test_events_of_one_moment_share_what_is_placed_in_it():
    run = attached()
    at = ready_at_once(run)
    assert ROUTES_PER_STEP < ROUTES_PER_MOMENT < WANTED
    assert len(run.routes) == ROUTES_PER_MOMENT
    assert run.core.dispatch.is_cut
    assert run.core.next_deadline() == at
    assert why_alive(run.core).kind is ReasonKind.RUNS


def test_ticks_place_the_rest_each_trajectory_once():
    run = attached()
    at, seen = ready_at_once(run), len(run.routes)
    while run.core.dispatch.is_cut:
        run.do(Tick(), at)
        assert len(run.routes) - seen <= ROUTES_PER_STEP
        assert len(run.sent(messages.Route)) == len(run.routes) - seen
        seen = len(run.routes)
    assert seen == WANTED
    running = [len(instance.running) for instance in run.core.state.registry.instances()]
    assert sum(running) == WANTED


def test_the_next_moment_has_its_own():
    run = attached()
    at = ready_at_once(run)
    run.do(Received("i-0", Beat()), at)
    assert run.core.dispatch.is_cut
    assert len(run.routes) == ROUTES_PER_MOMENT
    run.do(Received("i-0", Beat()), at + 0.01)
    assert len(run.routes) == ROUTES_PER_MOMENT + ROUTES_PER_STEP
