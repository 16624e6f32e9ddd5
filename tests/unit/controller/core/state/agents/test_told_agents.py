"""What an agent worker may not say: each lie is refused by name, the worker closed, its episodes begun
again."""

import pytest

from protocol import messages
from protocol.messages import Ask, Close, EpisodeEnded, EpisodeFailed
from tests.support.agent_run import AgentRun


def close(run: AgentRun) -> str:
    """Why the worker was closed; "" if it was not."""
    closed = run.sent(Close)
    return closed[0].reason if closed else ""


@pytest.fixture
def run() -> AgentRun:
    """One episode has had a turn, another has an open ask; two workers, so that work can move."""
    found = AgentRun(agents=1)
    found.ask_all()
    found.sample(0, 0)
    found.join("agent-1")
    return found


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"keep": 8}, "keeps 8 tokens of episode 0 of group 0, trial 1, whose trajectory has 7"),
        ({"keep": 3}, "keeps 3 tokens"),
        ({"member": 1}, "asked for trajectory 0.1"),
        ({"number": 0}, "ask 0 of episode 0 of group 0, trial 1 came twice, or out of turn; expected ask 1"),
        ({"number": 2}, "expected ask 1"),
        ({"attempt": 1}, "the attempt 1; expected"),
        ({"given": 0}, "gave 0 tokens"),
        ({"given": 50}, "60 in all (agent.max_tokens)"),
        ({"most": 0}, "expected 1 to 10 (agent.max_turn_tokens)"),
        ({"most": 11}, "a turn of 11 tokens"),
        ({"trial": 2}, "which it was not given"),
        ({"cause": "edited"}, "told why episode 0 of group 0, trial 1 forks, by an ask of trajectory 0.0"),
    ],
)
def test_an_ask_that_contradicts_what_was_told_closes_the_worker(run, lie, words):
    run.ask(0, 0, **lie)
    assert words in close(run)
    assert run.worker_of(0, 0) == "agent-1"
    assert run.begins[0, 0].known == 1, "its turns are known"
    run.ask(0, 0)
    assert run.turns[0, 0].number == 0


def test_an_episode_of_another_worker_is_not_spoken_of(run):
    begin = run.begins[0, 0]
    run.say("agent-1", Ask(0, 0, begin.trial, 0, 0, begin.attempt + 1, 0, 3, "d0", 5))
    assert "which it was not given" in close(run)
    assert run.worker_of(0, 0) == "agent-0"


def test_one_thing_is_asked_at_a_time(run):
    begin = run.begins[0, 1]
    run.say("agent-0", Ask(0, 1, begin.trial, 1, 1, begin.attempt + 1, 3, 3, "x", 5))
    assert "asked twice" in close(run)


def test_more_turns_than_the_configuration_allows_are_refused():
    run = AgentRun(agent={"max_turns": 1})
    run.ask_all()
    run.sample()
    run.ask()
    assert "asked for turn 2" in close(run)
    assert "agent.max_turns allows 1" in close(run)


def test_more_tokens_than_the_policy_may_say_in_an_episode_are_refused():
    run = AgentRun(agent={"max_sampled_tokens": 12})
    run.ask_all()
    run.sample(0, 0)  # 4 tokens of the 5 that it might have
    run.ask(0, 0, most=8)
    assert not close(run), "those of other episodes do not count"
    run.ask(0, 0, fork=1, most=1)
    assert "asked for 1 tokens in episode 0 of group 0, trial 1, whose turns may have 12 so far" in close(run)
    assert "expected at most 12 in all (agent.max_sampled_tokens)" in close(run)


def test_a_turn_that_was_longer_before_counts_as_its_worker_counts_it():
    run = AgentRun(agents=2, agent={"max_sampled_tokens": 12})
    run.ask_all([0])
    run.ask(0, 0, fork=1, most=7)
    run.sample(0, 2, count=7)
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0, fork=0, most=5)
    run.ask(0, 0, fork=1, most=1)  # less was left, as another conversation was to have more
    assert run.turns[0, 2].segments[0].count == 7
    run.ask(0, 0, fork=1, most=6)
    assert not close(run)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"reward": 1e31}, "a value of 1e+31"),
        ({"turn_rewards": ((0, 1, 0.0),)}, "which has {0: 1}; one for each counts"),
        ({"awaited": ((0, 0, 1.0),) * 9}, "told how long 9 turns of"),
        ({"awaited": ((0, 0, 1e300),)}, "a value of 1e+300"),
        ({"turn_rewards": ((2, 0, 0.0),)}, "turns [(2, 0)]"),
        ({"turn_rewards": ((0, 0, 0.0), (0, 0, 1.0))}, "turns [(0, 0), (0, 0)]"),
        ({"parts": (("style", 0.5), ("style", 0.5))}, "each once"),
        ({"metrics": tuple((f"m{i}", 0.0) for i in range(65))}, "at most 64"),
        ({"metrics": (("m", -1e31),)}, "a value of -1e+31"),
        ({"reward": None, "earned": "turns"}, "have earned its reward, and gave none"),
        ({"earned": "scored"}, "to the reward function, and gave one"),
    ],
)
def test_an_end_that_cannot_be_is_refused(run, more, words):
    run.end(0, 0, **more)
    assert words in close(run)
    assert run.member().state == "waiting"


def test_an_end_before_the_first_turn_is_refused(run):
    run.end(0, 1)
    assert "before a turn was sampled" in close(run)


def test_several_rewards_are_refused(run):
    run.say("agent-0", EpisodeEnded(0, 0, 1, "stop", (1.0, 2.0)))
    assert "2 rewards" in close(run)


@pytest.mark.parametrize(("size", "rewards"), [((4 << 20) + 1, ()), (9, (1.0,))])
def test_messages_that_nobody_can_want_are_refused(run, size, rewards):
    run.say("agent-0", EpisodeEnded(0, 0, 1, "stop", rewards, talk=size))
    assert f"{size} bytes of messages" in close(run)


def test_what_has_ended_does_not_end_again(run):
    run.end(0, 0)
    run.say("agent-0", EpisodeEnded(0, 0, 1, "stop", (1.0,)))
    assert "has ended" in close(run)
    assert run.core.state.groups[0].episodes[0].ending == "stop"


def test_a_failure_of_what_was_not_given_is_refused(run):
    run.say("agent-0", EpisodeFailed(7, 0, 1, "agent", "no", "{}"))
    assert "group 7" in close(run)


def test_an_agent_worker_samples_nothing(run):
    run.say("agent-0", messages.Generated.of(()))
    assert "which its role may not say" in close(run)


def test_a_worker_without_room_is_refused():
    run = AgentRun()
    run.say("agent-9", messages.Attach("agent", "agent-9", 1, "here"))
    run.say("agent-9", messages.Ready(0, 0, 0))
    assert "room for no episode" in close(run)


def test_a_run_without_an_agent_has_no_place_for_its_workers():
    run = AgentRun(agent={"function": ""})
    run.say("agent-9", messages.Attach("agent", "agent-9", 1, "here"))
    assert "no agent" in close(run)


def test_what_crosses_the_end_of_an_episode_is_no_lie_until_the_worker_has_heard_of_it():
    run = AgentRun(staleness={"spare_responses": 1, "max_staleness": 1})
    for episode in (0, 1, 2):
        run.ask(0, episode)
    for episode in (0, 1, 2):
        run.sample(0, episode)
    late, turn = run.begins[0, 2], run.turns[0, 2]
    run.end(0, 0)
    run.end(0, 1)
    assert run.ended == [(0, 2, 1)]
    again = Ask(0, 2, late.trial, 1, 2, turn.attempt + 1, 7, 1, "d", 5)
    run.say("agent-0", again)
    run.say("agent-0", EpisodeEnded(0, 2, late.trial, "stop", (1.0,)))
    assert not close(run)
