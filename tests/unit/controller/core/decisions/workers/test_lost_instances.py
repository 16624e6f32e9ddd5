"""A prompt whose response ends every rollout worker that gets it is set aside."""

import pytest

from controller.core.commands import Warn
from controller.core.decisions.workers.lost_instances import MAX_LOST
from controller.core.events import Received, WorkerExited
from protocol import messages
from protocol.messages import WorkerFailed
from tests.support.core_run import Run

CRASH = WorkerExited("rollout-0", "rollout", -9, "")
GAVE_UP = Received("rollout-0", WorkerFailed("the engine has died"))


class Dying(Run):
    """A run of two groups of two, with one rollout worker that ends and is replaced again and again."""

    def __init__(self, *ended):
        super().__init__()
        self.routes = self.start_groups()
        for route in ended:
            self.generate(self.routes[route], 4)
        self.routes = [route for number, route in enumerate(self.routes) if number not in ended]
        self.set_aside: list[str] = []

    def end(self, event):
        """A token of each response comes, and then the worker ends."""
        for route in self.routes:
            self.generate(route, 1, "")
        self.do(event)
        self.set_aside += [c.text for c in self.commands if isinstance(c, Warn) and "set aside" in c.text]
        self.attach("rollout-0", "rollout")
        again = self.sent(messages.Route)
        self.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        self.routes = [*again, *self.sent(messages.Route)]


@pytest.mark.parametrize("event", [CRASH, GAVE_UP])
def test_a_response_that_ends_every_instance_leaves_with_its_prompt_and_a_complete_group_stays(event):
    run = Dying(2, 3)
    for _ in range(MAX_LOST - 1):
        run.end(event)
    assert not run.set_aside
    run.end(event)
    (text,) = run.set_aside
    assert "Prompt 0 is set aside" in text
    assert f"{MAX_LOST} rollout workers died while they generated a response to it." in text
    assert [*run.core.state.groups] == [1]
    assert not run.core.state.finished


@pytest.mark.parametrize(("ended", "order"), [((), [0, 1]), ((0,), [1, 0])])
def test_each_end_sets_one_prompt_aside_the_one_with_most_on_what_died(ended, order):
    run = Dying(*ended)
    for _ in range(MAX_LOST):
        run.end(CRASH)
    assert [*run.core.state.groups] == order[1:]
    run.end(CRASH)
    assert not run.core.state.groups
    assert [text.split()[1] for text in run.set_aside] == [str(group) for group in order]


def test_a_worker_that_leaves_in_good_order_is_held_against_no_response():
    run = Dying()
    for _ in range(MAX_LOST + 1):
        run.end(Received("rollout-0", messages.Detach("preempted")))
    assert not run.set_aside
    assert 0 in run.core.state.groups
