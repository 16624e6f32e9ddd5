"""Episodes that fail, and episodes whose worker dies: who begins anew, and what is known already."""

import pytest

from controller.core.commands import Warn
from controller.core.decisions.supply.episodes import MAX_LEFT_OUT
from controller.core.events import Restarted
from protocol.messages import Begin, Route
from tests.support.agent_run import AgentRun

PATIENT = {
    "limits": {"token_s": 5000, "answer_s": 5000},
    "controller": {"lease_s": 5000, "attach_timeout_s": 5000},
}


def test_only_the_episode_that_failed_begins_anew():
    run = AgentRun()
    run.ask_all()
    run.sample(0, 0)
    run.sample(0, 1)
    run.fail(0, 0)
    (begin,) = run.sent(Begin)
    assert (begin.group, begin.episode, begin.trial, begin.known) == (0, 0, 2, 0)
    assert begin.attempt > run.turns.get((0, 0), run.routes[0, 0]).attempt
    assert run.member(0, 1).response_tokens == 4
    assert run.core.state.accounts.lost == 4
    run.ask(0, 0)
    assert run.routes[0, 0].attempt == begin.attempt + 2


def test_a_failure_before_the_start_sends_the_group_back_to_its_preparation():
    run = AgentRun(trainer={"batch_groups": 1}, staleness={"max_staleness": 0}, agent={"prepare_groups": 2})
    run.ask_all()
    assert run.core.state.groups[1].state == "waiting", "the bound admits one group"
    run.fail(1, 0)
    assert run.core.state.groups[1].state == "beginning"
    assert not run.core.state.fresh
    run.ask(1, 0)
    assert run.core.state.groups[1].state == "waiting"


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_prompt_that_fails_too_often_is_set_aside(is_asked):
    run = AgentRun(
        trainer={"batch_groups": 1}, staleness={"max_staleness": 0}, agent={"retries": 1, "prepare_groups": 2}
    )
    run.ask_all([0])
    run.ask(1, 1)
    for trial in (1, 2):
        if is_asked:
            run.ask(1, 0)
        run.fail(1, 0)
        assert (1 in run.core.state.groups) == (trial == 1)
    assert (1, 1, 1) in run.ended
    assert run.counts["prompts/set_aside"] == 1


def test_failures_without_success_end_the_run_with_the_first_of_them():
    run = AgentRun(agent={"max_consecutive_failures": 3})
    for number, key in enumerate([(0, 0), (0, 1), (1, 0)]):
        run.fail(*key, kind="agent", reason=f"ValueError: number {number}")
    state = run.core.state
    assert not state.ending_is_success
    assert "3 episodes failed in a row" in state.ending
    assert "number 0" in state.ending


def test_a_prompt_that_comes_to_a_limit_at_its_start_is_left_out_and_counts_as_no_failure():
    run = AgentRun(prompts=4, agent={"max_consecutive_failures": 2})
    run.ask(0, 1)
    run.fail(0, 0, kind="limit", reason="it is too long")
    state = run.core.state
    assert 0 not in state.groups
    assert (0, 1, 1) in run.ended, "its siblings have the same row"
    assert (run.counts["prompts/set_aside"], run.counts["episodes/failed_limit"]) == (1, 1)
    assert run.counts["episodes/retried"] == 0
    run.fail(1, 0, kind="limit")
    assert state.ending is None


def test_a_run_whose_prompts_all_come_to_a_limit_ends():
    run = AgentRun(prompts=MAX_LEFT_OUT + 5, agent={"prepare_groups": 1})
    for group in range(MAX_LEFT_OUT):
        assert run.core.state.ending is None
        run.fail(group, 0, kind="limit", reason=f"number {group} is too long")
    assert f"{MAX_LEFT_OUT} prompts in a row reached a limit" in run.core.state.ending
    assert f"number {MAX_LEFT_OUT - 1} is too long" in run.core.state.ending
    assert not run.core.state.ending_is_success


def test_a_success_between_failures_lets_the_run_go_on():
    run = AgentRun(agent={"max_consecutive_failures": 2})
    run.ask_all([0])
    run.sample(0, 0)
    run.fail(1, 0)
    run.end(0, 0)
    run.fail(1, 1)
    assert run.core.state.ending is None


def test_a_lost_process_costs_the_environment_and_no_token():
    run = AgentRun(agent={"retries": 1})
    run.ask_all()
    run.sample()
    run.fail(kind="process")
    (begin,) = run.sent(Begin)
    assert (begin.trial, begin.known) == (1, 1)
    run.ask()
    assert not run.sent(Route)
    assert run.turns[0, 0].number == 0
    run.fail(kind="process")
    (begin,) = run.sent(Begin)
    assert (begin.trial, begin.known) == (2, 0), "what kills process after process begins anew"


# -- workers that die ------------------------------------------------------------------------------------


def test_episodes_of_a_dead_worker_go_on_with_their_turns_known():
    run = AgentRun(agents=2)
    run.ask_all()
    run.sample(0, 0)
    first = run.turns[0, 0]
    gone = run.worker_of(0, 0)
    run.ask(0, 0)
    run.lose(gone)
    assert run.worker_of(0, 0) != gone
    assert run.begins[0, 0].known == 2
    run.sample(0, 0, 3)  # it goes on while nobody runs the function
    assert run.member().response_tokens == 7
    run.ask(0, 0)
    assert run.turns[0, 0] == first
    assert not run.sent(Route)
    run.ask(0, 0)
    assert not run.sent(Route)
    assert run.turns[0, 0].segments[0].count == 3
    assert run.core.state.accounts.lost == 0
    run.ask(0, 0)
    assert run.routes[0, 0].begins == 5, "and then it goes on"
    assert run.counts["episodes/replayed"] == 1


def test_an_open_turn_is_answered_to_who_asks_again():
    run = AgentRun(agents=2)
    run.ask_all()
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0)
    assert not run.turns
    run.sample(0, 0)
    assert run.turns[0, 0].number == 0


def test_an_episode_that_asks_something_else_begins_anew_and_replay_goes_off_after_three():
    run = AgentRun(agents=2, agent={"retries": 0})
    run.ask_all()
    run.sample(0, 0)
    for times in (1, 2, 3):
        gone = run.worker_of(0, 0)
        run.lose(gone)
        run.ask(0, 0, digest=f"other{times}")
        assert run.counts["episodes/diverged"] == times
        assert run.begins[0, 0].trial == times + 1
        assert run.begins[0, 0].known == 0
        run.ask(0, 0)
        run.sample(0, 0)
        run.join(f"{gone}again")
    assert not run.core.state.beginnings.is_replaying
    run.lose(run.worker_of(0, 0))
    assert run.begins[0, 0].known == 0
    assert run.core.state.groups[0].state == "generating", "a divergence is no failure"


def test_each_controller_says_once_that_replay_went_off():
    run = AgentRun(prompts=4, agent={"prepare_groups": 4})
    for epoch in (1, 2):
        if epoch > 1:
            run.do(Restarted(run.config.model_dump_json(), "", ()))
            run.join("another")
        run.ask_all(range(4))
        run.lose(run.worker_of(0, 0))
        run.join(f"next{epoch}")
        said = []
        for episode in range(4):
            run.ask(episode // 2, episode % 2, digest=f"other{epoch}")
            said += [command.text for command in run.commands if isinstance(command, Warn)]
        assert len([text for text in said if "asked something else when they were run again" in text]) == 1


def test_a_function_that_returns_before_it_did_the_last_time_has_diverged():
    run = AgentRun(agents=2)
    run.ask_all()
    run.sample(0, 0)
    run.ask(0, 0)
    run.sample(0, 0)
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0)
    run.end(0, 0)
    assert run.counts["episodes/diverged"] == 1
    assert run.member().state == "waiting"


def test_without_replay_a_lost_worker_means_new_episodes():
    run = AgentRun(agents=2, agent={"replay": "never"})
    run.ask_all()
    run.sample(0, 0)
    run.lose(run.worker_of(0, 0))
    assert (run.begins[0, 0].trial, run.begins[0, 0].known) == (2, 0)
    assert run.core.state.accounts.lost == 4


@pytest.mark.parametrize("asked", [1, 2])
def test_what_has_started_takes_the_place_of_what_is_prepared(asked):
    run = AgentRun(
        agents=2, capacity=3, prompts=3, trainer={"batch_groups": 1}, staleness={"max_staleness": 0},
        agent={"prepare_groups": 4},
    )  # fmt: skip
    run.ask_all()
    for episode in range(asked):
        run.ask(2, episode)
    states = [run.core.state.groups[id].state for id in range(3)]
    assert states == ["generating", "waiting", "beginning" if asked == 1 else "waiting"]
    run.lose(run.worker_of(0, 0))
    assert run.counts["episodes/put_back"] > 0
    assert run.core.state.groups[2].state in ("encoding", "beginning")
    there = {key for worker in run.core.state.registry.agents() for key in worker.episodes}
    assert {(0, 0), (0, 1)} <= there
