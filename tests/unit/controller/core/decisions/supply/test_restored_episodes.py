"""Episodes whose environment was saved go on from there, wherever they are begun again."""

import pytest

from protocol.messages import Begin, Close, SavedTrajectory
from tests.support.agent_run import AgentRun


def saved_run(**more) -> AgentRun:
    """An episode that has had a turn and saved its state with the request for the next; two workers."""
    run = AgentRun(agents=2, **more)
    run.ask_all()
    run.sample(0, 0, 4)
    run.ask(0, 0, saved=100)
    return run


def begun(run) -> Begin:
    """How the first episode was begun last."""
    return run.begins[0, 0]


def test_it_goes_on_from_the_request_that_its_state_came_with():
    run = saved_run()
    first = run.member(0, 0)
    run.lose(run.worker_of(0, 0))
    assert begun(run).restored == (SavedTrajectory(1, 7, first.segments[-2].attempt, True),)
    assert begun(run).outgoing_payload()[1][0][:4] == ("state", 0, 0, 1)
    assert run.counts["episodes/restored"] == 1
    run.sample(0, 0, 3)
    assert (0, 0) not in run.turns, "it waits for the request that the state came with"
    run.ask(0, 0, saved=110)
    assert run.turns[0, 0].number == 1, "answered without a route"
    assert run.counts["episodes/diverged"] == 0
    run.ask(0, 0, saved=120)
    assert run.counts["episodes/replayed"] == 1
    run.join("agent-2")
    run.lose(run.worker_of(0, 0))
    ((asks, length, _, _),) = begun(run).restored
    assert (asks, length) == (2, 13)
    assert run.core.state.accounts.lost == 0


def test_it_begins_from_its_start_if_it_has_had_no_turn_yet():
    run = AgentRun(agents=2)
    run.ask(0, 0, saved=100)
    run.lose(run.worker_of(0, 0))
    assert (begun(run).known, begun(run).restored) == (1, ())


def test_the_newest_state_counts():
    run = saved_run()
    run.sample(0, 0, 2)
    run.ask(0, 0, saved=90)
    run.lose(run.worker_of(0, 0))
    ((asks, length, _, is_trained),) = begun(run).restored
    assert (asks, length, is_trained) == (2, 12, True)


def test_a_divergence_after_it_begins_anew_from_the_start():
    run = saved_run()
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0, digest="other", saved=100)
    assert run.counts["episodes/diverged"] == 1
    assert (begun(run).trial, begun(run).restored) == (2, ())


def test_without_replay_it_begins_anew():
    run = saved_run(agent={"replay": "never"})
    run.lose(run.worker_of(0, 0))
    assert (begun(run).trial, begun(run).known, begun(run).restored) == (2, 0, ())


def test_a_state_is_of_no_use_while_turns_before_it_are_not_repeated():
    run = AgentRun(agents=2)
    run.ask_all()
    run.sample(0, 0, 4)
    run.ask(0, 0, fork=1)
    run.sample(0, 2, 4)
    attempt = run.begins[0, 0].attempt
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0, number=0, attempt=attempt + 1, keep=0)
    run.ask(0, 0, saved=50)  # the fork has not been asked for again
    assert not run.sent(Close)
    run.join("agent-2")
    run.lose(run.worker_of(0, 0))
    assert begun(run).restored == ()


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (
            {"saved": (4 << 20) + 1},
            "It saved 4194305 bytes of episode 0 of group 0, trial 1; agent.max_state_mb",
        ),
        ({"saved": 5, "fork": 1}, "saved the state of episode 0 of group 0, trial 1 while another ask"),
    ],
)
def test_a_state_that_an_honest_worker_would_not_save_closes_it(lie, words):
    run = AgentRun(agents=1)
    run.ask_all()
    if "fork" not in lie:
        run.sample(0, 0, 4)
    run.ask(0, 0, **lie)
    (closed,) = run.sent(Close)
    assert words in closed.reason
