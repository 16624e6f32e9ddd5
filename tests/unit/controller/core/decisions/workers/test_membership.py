"""What ends a run is told last, and is what began it: never the kill by which the controller itself closed a
worker."""

import pytest

from controller.cli.console import brief
from controller.core.commands import Finish, Spawn, Warn
from controller.core.events import PeerFaulted, Tick, WorkerExited
from protocol.messages import Attach, Beat, Detach, Ready, Welcome, WorkerFailed
from tests.support.core_run import Run

FAULT = "Ready is malformed at policy_version: Input should be greater than or equal to 0"


def warnings(commands):
    return [command.text for command in commands if isinstance(command, Warn)]


class Failing(Run):
    """A run whose only rollout worker is closed again and again."""

    def __init__(self, **sections):
        super().__init__(controller={"respawns": 2, "lease_s": 5.0}, **sections)
        self.lives = 0
        self.told: list[str] = []

    def do(self, event, at=None):
        commands = super().do(event, at)
        if hasattr(self, "told"):
            self.told += warnings(commands)
        return commands

    def next_life(self):
        self.lives += 1
        peer = f"life {self.lives}"
        self.say(peer, Attach("rollout", "rollout-0", 1, "here"))
        return peer

    def killed(self):
        self.do(WorkerExited("rollout-0", "rollout", -9, ""))


def test_a_worker_closed_for_a_fault_ends_the_run_with_that_fault():
    run = Failing()
    run.do(PeerFaulted("rollout-0", FAULT))
    run.killed()
    for _ in range(2):
        run.do(PeerFaulted(run.next_life(), FAULT))
        run.killed()
    (finish,) = [command for command in run.commands if isinstance(command, Finish)]
    assert not finish.is_success
    assert finish.reason.endswith(f"rollout-0 was closed: {FAULT}")
    assert run.core.summary()["reason"] == finish.reason
    assert not [text for text in [finish.reason, *run.told] if "signal" in text], run.told
    assert "rollout-0 is started again." in run.told


def test_a_silent_worker_is_not_said_to_have_been_killed():
    run = Failing()
    run.now = 3.0
    for _ in range(3):
        run.do(Tick(), at=run.core.next_deadline())
        if any("rollout-0 was silent" in text for text in run.told):
            break
    run.killed()
    assert "rollout-0 is started again." in run.told
    assert not any("signal" in text for text in run.told)


def test_who_was_killed_by_others_is_said_to_have_been():
    run = Failing()
    run.killed()
    assert run.told == ["rollout-0 was killed by signal 9; it is started again."]


def test_what_a_worker_said_before_it_left_is_why_it_is_started_again():
    run = Failing()
    run.say("rollout-0", WorkerFailed("The engine failed with OSError: no such device.\nTraceback: ..."))
    run.killed()
    assert run.told[-1] == "rollout-0: The engine failed with OSError: no such device. It is started again."


def test_a_worker_whose_next_life_would_fail_alike_is_not_started_again():
    """A loss of the user's that raises: the same batch would come again."""
    reason = "trainer.loss: loss (mine.py, line 3) raised ValueError: no. Mend the function."
    run = Failing()
    run.say("trainer", WorkerFailed(reason))
    commands = run.do(WorkerExited("trainer", "trainer", 1, ""))
    assert [command.name for command in commands if isinstance(command, Spawn)] == ["trainer"], "as of before"
    run.say("again", Attach("trainer", "trainer", 1, "here"))
    run.say("again", Ready(0, 0, 0))
    run.say("again", WorkerFailed(reason, is_final=True))
    commands = run.do(WorkerExited("trainer", "trainer", 1, ""))
    assert not [command for command in commands if isinstance(command, Spawn)]
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish == Finish(False, f"No trainer worker is left. {reason}")


def test_what_follows_from_the_first_cause_does_not_take_its_place():
    run = Failing()
    run.killed()
    peer = run.next_life()
    while run.core.state.registry.local["rollout-0"].deadline is not None:
        run.say(peer, Beat(), at=run.now + 1.0)
    run.do(PeerFaulted(peer, FAULT))  # in what it had said before it was ended
    run.killed()
    assert run.told[-1].startswith("rollout-0: rollout-0 was not ready "), run.told


def test_of_two_workers_the_first_to_be_given_up_is_the_cause():
    run = Failing(instances=2)
    run.say("rollout-1", WorkerFailed("The disk is full."))
    run.core.state.registry.local["rollout-1"].failures = 9
    run.do(WorkerExited("rollout-1", "rollout", -9, ""))
    run.core.state.registry.local["rollout-0"].failures = 9
    run.do(WorkerExited("rollout-0", "rollout", -9, "last words"))
    (finish,) = [command for command in run.commands if isinstance(command, Finish)]
    assert finish.reason.startswith("No rollout worker is left. rollout-0 was killed by signal 9.")
    assert finish.reason.endswith("The first to go was rollout-1: The disk is full.")


def test_a_worker_is_told_the_name_that_the_run_calls_it_by():
    run = Failing()
    run.say("guest", Attach("rollout", "rollout-0", 1, "here"))
    (welcome,) = run.sent(Welcome)
    assert welcome.name == run.core.state.registry.workers["guest"].name == "rollout-0#4"


def test_equal_causes_are_told_once():
    run = Failing(instances=2)
    for name in ("rollout-1", "rollout-0"):
        run.core.state.registry.local[name].failures = 9
        run.do(PeerFaulted(name, FAULT))
        run.do(WorkerExited(name, "rollout", -9, ""))
    (finish,) = [command for command in run.commands if isinstance(command, Finish)]
    assert finish.reason == f"No rollout worker is left. rollout-0 was closed: {FAULT}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("One line.", "One line."),
        ("It failed: why.\nTraceback ...\n...", "It failed: why. (more in logs/controller.log)"),
    ],
)
def test_a_warning_is_one_line_on_the_console(text, shown):
    assert brief(text) == shown


def test_who_leaves_before_it_was_ready_is_told_of_now_and_then_and_who_was_ready_each_time():
    run = Run(controller={"lease_s": 5.0})
    said: dict[bool, list[str]] = {}
    for is_ready in (False, True):
        for number in range(10):
            peer = f"{is_ready} {number}"
            run.say(peer, Attach("rollout", f"guest#{number}", 1, "here"))
            if is_ready:
                run.say(peer, Ready(0, 4, 1000))
            run.say(peer, Detach("enough"))
            left = [text for text in warnings(run.commands) if "left the run" in text]
            said.setdefault(is_ready, []).extend(left)
    assert len(said[False]) == 2, "the 1st and the 10th"
    assert len(said[True]) == 10


def test_the_log_of_a_worker_that_ended_without_a_word_says_why():
    run = Failing()
    words = "Attached.\nThe controller has been silent for 10.2 s.\n\n"
    run.do(WorkerExited("rollout-0", "rollout", 1, words))
    assert run.told == [
        "rollout-0 ended with code 1; it is started again. "
        "Its log ends: The controller has been silent for 10.2 s."
    ]
    run = Failing()
    run.do(WorkerExited("rollout-0", "rollout", 1, "x" * 1000))
    assert run.told[-1].endswith(f"Its log ends: {'x' * 300}")
    run = Failing()
    run.do(WorkerExited("rollout-0", "rollout", 0, ""))
    assert run.told == ["rollout-0 ended with code 0; it is started again."]
