"""Episodes of agents, event by event: who begins, who has the word, what is known, and how each of them
ends."""

from dataclasses import replace

import pytest

from controller.core.events import Tick
from protocol import messages
from protocol.messages import GIVEN, EndEpisodes, Segment, Turn
from tests.support.agent_run import AgentRun

PATIENT = {
    "limits": {"token_s": 5000, "answer_s": 5000},
    "controller": {"lease_s": 5000, "attach_timeout_s": 5000},
}


def test_episodes_begin_before_their_group_has_a_place():
    run = AgentRun(prompts=3, trainer={"batch_groups": 1}, agent={"prepare_groups": 2})
    assert sorted(run.begins) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [run.core.state.groups[id].state for id in range(3)] == ["beginning", "beginning", "encoding"]
    assert len(run.core.state.ledger) == 0
    run.ask(0, 0)
    assert run.core.state.groups[0].state == "beginning"
    run.ask(0, 1)
    assert run.core.state.groups[0].state == "generating"
    assert (2, 0) in run.begins, "its place in the preparation is free"


def test_siblings_have_one_seed_and_other_groups_another():
    run = AgentRun()
    seeds = {key: begin.seed for key, begin in run.begins.items()}
    assert seeds[0, 0] == seeds[0, 1] != seeds[1, 0]


def test_a_turn_follows_what_was_given_and_is_answered_by_what_was_sampled():
    run = AgentRun()
    run.ask_all()
    route = run.routes[0, 0]
    assert route.begins == 1
    assert route.max_new_tokens == 5
    assert [(s.policy_version, s.count) for s in route.segments] == [(GIVEN, 3)]
    run.sample(count=2, ending="")
    assert not run.turns
    run.sample(count=2, start=2)
    turn = run.turns[0, 0]
    assert turn.segments == (Segment(route.attempt, 0, 4),)
    assert (turn.number, turn.member, turn.attempt, turn.ending) == (0, 0, route.attempt, "stop")
    assert run.member().state == "waiting"
    assert run.member().peer is None
    run.ask(given=6)
    again = run.routes[0, 0]
    assert [(s.policy_version, s.count) for s in again.segments] == [(GIVEN, 3), (0, 4), (GIVEN, 6)]
    assert again.begins == 3
    assert again.seed != route.seed
    assert run.core.state.accounts.given == 4 * 3 + 6


def test_an_interrupted_turn_goes_on_with_its_noise_and_its_budget():
    run = AgentRun()
    run.ask_all()
    first = run.routes[0, 0]
    run.publish(1)
    run.sample(count=2, ending="interrupt")
    for _ in range(3):
        run.say("rollout-0", messages.Pulled(1, "digest1", 0.1)) if run.sent(messages.Pull) else run.do(
            Tick()
        )
    assert not run.turns
    again = run.routes[0, 0]
    assert again.attempt > first.attempt
    assert (again.seed, again.begins, again.max_new_tokens) == (first.seed, 1, 3)


def test_new_weights_send_nothing_to_an_instance_for_an_episode_whose_environment_thinks():
    run = AgentRun()
    run.ask_all([0])
    run.sample(0, 0)
    run.sample(0, 1)
    sent: list[type] = []

    def to_instance(commands):
        sent.extend(type(c.message) for c in commands if getattr(c, "peer", "") == "rollout-0")

    to_instance(run.publish(1))
    to_instance(run.say("rollout-0", messages.Pulled(1, "digest1", 0.1)))
    to_instance(run.do(Tick()))
    assert sent == [messages.Pull]
    run.ask(0, 0)
    run.generate(run.routes[0, 0], 2, version=1)
    assert [(s.policy_version, s.count) for s in run.member().segments] == [
        (GIVEN, 3), (0, 4), (GIVEN, 3), (1, 2),
    ]  # fmt: skip
    assert run.core.state.groups[0].oldest_token_version() == 0


def finished(run: AgentRun, group: int, rewards=(1.0, 0.0), **more) -> None:
    for episode, reward in enumerate(rewards):
        run.sample(group, episode)
        run.end(group, episode, reward, **more)


def test_a_group_is_trained_when_its_episodes_have_ended():
    run = AgentRun()
    run.ask_all()
    finished(run, 0)
    assert run.core.state.groups[0].state == "occupied", "it brought its rewards along"
    finished(run, 1)
    (train,) = run.sent(messages.Train)
    assert [(item.group, item.episode, item.reward) for item in train.items] == [
        (0, 0, 1.0), (0, 1, 0.0), (1, 0, 1.0), (1, 1, 0.0),
    ]  # fmt: skip
    assert [item.sampled_tokens for item in train.items] == [4] * 4
    assert [item.response_tokens for item in train.items] == [7] * 4
    kinds = [[piece.kind for piece in frame] for frame in train.outgoing_payload()]
    assert kinds == [[], ["tokens"] * 8, ["logprobs"] * 4]


def test_what_has_no_reward_is_scored():
    run = AgentRun()
    run.ask_all()
    finished(run, 0, (None, 2.0))
    score = run.sent(messages.Score) or [
        c.message for c in run.commands if isinstance(getattr(c, "message", None), messages.Score)
    ]
    assert [frame and frame[0].kind for frame in score[0].outgoing_payload()] == [
        "row",
        [],
        "tokens",
        "tokens",
    ]
    run.say("reward-0", messages.GroupScored(0, 1, (0.25, 0.5)))
    assert run.core.state.groups[0].rewards == (0.25, 2.0)


def test_the_parts_of_rewards_are_metrics():
    run = AgentRun()
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
        run.end(0, episode, 1.0, parts=(("style", 0.5), *([("odd", 1.0)] if episode else [])))
    assert run.core.state.groups[0].reward_parts == (("style", (0.5, 0.5)),)


def play_two_turns_and_one(run):
    """The first episode of group 0 has two turns, the first of which brings 2, and the other episode one."""
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
    run.ask(0, 0)
    run.sample(0, 0)
    run.end(0, 0, 1.0, turn_rewards=((0, 0, 2.0),))
    run.end(0, 1, 0.5)


def test_each_turn_may_have_an_advantage_of_its_own():
    run = AgentRun(
        agent={"turn_rewards": True, "turn_discount": 0.5},
        trainer={"batch_groups": 2, "advantage_scale": "none"},
    )
    play_two_turns_and_one(run)
    group = run.core.state.groups[0]
    # returns: 2 + 0.5 * 1 and 1; 0.5
    assert group.turn_outcomes == ((1.0, 0.0), (-1.0,))
    assert [item.outcomes for item in group.contribute().items] == [(0.0, 1.0, 0.0, 0.0), (0.0, -1.0)]


@pytest.mark.parametrize(
    ("earned", "second", "first"),
    [
        ("turns", (0.0, 0.0), (0.5, -0.5)),  # the reward is theirs, and nothing beside it
        ("end", (0.5, -0.5), (1.0, -1.0)),
        ("", (0.5, -0.5), (1.0, -1.0)),  # told by an older release, which took it for one of the end
    ],
)
def test_a_reward_that_its_turns_have_earned_is_no_reward_of_the_last_turn_too(earned, second, first):
    run = AgentRun(agent={"turn_rewards": True}, trainer={"batch_groups": 2, "advantage_scale": "none"})
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
        run.ask(0, episode)
        run.sample(0, episode)
        reward = 1.0 - episode  # for the first turn
        told = ((episode, 0, reward), (episode, 1, 0.0))
        run.end(0, episode, reward, turn_rewards=told, earned=earned)
    group = run.core.state.groups[0]
    assert group.turn_outcomes == tuple(zip(first, second, strict=True))
    assert group.rewards == (1.0, 0.0), "the episode's own, for metrics and the outcomes of whole episodes"
    assert group.outcomes == (0.5, -0.5)


def test_another_function_may_make_the_advantages_of_turns():
    run = AgentRun(agent={"turn_rewards": True, "turn_discount": 0.5}, trainer={"batch_groups": 2})
    seen = []

    def credit(view):
        seen.append(view)
        return [[10.0 * place + turn for turn, _ in enumerate(one)] for place, one in enumerate(view.rewards)]

    run.core.state.strategies = replace(run.core.state.strategies, credit=credit)
    play_two_turns_and_one(run)
    (view,) = seen
    assert (view.rewards, view.discount, view.baseline) == (((2.0, 1.0), (0.5,)), 0.5, "group_mean")
    items = run.core.state.groups[0].contribute().items
    assert [item.outcomes for item in items] == [(0.0, 0.0, 0.0, 1.0), (0.0, 10.0)]


def test_a_turn_that_is_open_when_the_function_returns_is_aborted():
    run = AgentRun()
    run.ask_all()
    run.sample()
    run.ask()
    run.sample(count=2, ending="")
    run.end()
    assert run.sent(messages.Abort)
    member = run.member()
    assert (member.state, member.response_tokens, member.given_tokens) == ("finished", 4, 3)
    assert run.core.state.accounts.aborted == 2


@pytest.mark.parametrize(
    ("rule", "reward", "trained"), [("score", 0.7, 2), ("zero", 0.0, 2), ("mask", None, 1)]
)
def test_a_limit_is_worth_what_the_rule_says(rule, reward, trained):
    run = AgentRun(agent={"on_limit": rule})
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
    run.end(0, 0, 0.7, ending="turns")
    run.end(0, 1, 1.0)
    group = run.core.state.groups[0]
    assert len(group.contribute().items) == group.size == trained
    assert group.rewards == ((reward, 1.0) if trained == 2 else (1.0,))
    assert run.core.state.accounts.filtered == (4 if rule == "mask" else 0)


def test_a_group_of_which_nothing_counts_is_filtered():
    run = AgentRun(agent={"on_limit": "mask"})
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
        run.end(0, episode, ending="tokens")
    assert 0 not in run.core.state.groups
    assert run.core.state.accounts.filtered == 8


# -- time ------------------------------------------------------------------------------------------------


def test_an_environment_that_is_silent_for_too_long_is_given_up():
    run = AgentRun(agent={"turn_timeout_s": 30}, **PATIENT)
    run.ask_all()
    run.sample()
    since = run.now
    assert run.core.next_deadline() == pytest.approx(since + 30)
    assert "episode 0, turn 1" in run.core.snapshot().oldest_group.waits_for
    run.do(Tick(), at=since + 30.5)
    assert run.ended == [(0, 0, 1)]
    assert run.member().state == "finished"
    assert run.core.state.groups[0].episodes[0].ending == "timeout"
    run.sample(0, 1)
    run.end(0, 1)
    assert run.core.state.groups[0].rewards == (0.0, 1.0)


def test_time_in_which_the_policy_is_awaited_does_not_count():
    run = AgentRun(agent={"turn_timeout_s": 30, "start_timeout_s": 20}, **PATIENT)
    run.ask_all()
    run.do(Tick(), at=run.now + 500)
    assert run.ended == []
    run.sample()
    run.do(Tick(), at=run.now + 29)
    assert run.ended == []


def test_an_episode_has_a_time_in_all():
    run = AgentRun(agent={"turn_timeout_s": 30, "episode_timeout_s": 50, "on_timeout": "retry"}, **PATIENT)
    run.ask_all()
    for _ in range(2):
        run.sample()
        run.do(Tick(), at=run.now + 20)
        run.ask()
    run.sample()
    run.do(Tick(), at=run.now + 9)
    assert run.ended == []
    run.do(Tick(), at=run.core.next_deadline())
    assert run.ended == [(0, 0, 1)]
    assert run.begins[0, 0].trial == 2


def test_a_start_that_hangs_is_a_failure_whatever_a_hang_is_worth():
    run = AgentRun(agent={"start_timeout_s": 20, "on_timeout": "score"}, **PATIENT)
    run.ask(0, 1)
    run.do(Tick(), at=run.core.next_deadline())
    assert (0, 0, 1) in run.ended
    assert run.begins[0, 0].trial == 2
    assert run.core.state.groups[0].episodes[1].trial == 1


def test_late_words_of_an_ended_episode_change_nothing():
    run = AgentRun(agent={"turn_timeout_s": 30, "on_timeout": "retry"}, **PATIENT)
    run.ask_all()
    run.sample()
    begun, turn = run.begins[0, 0], run.turns[0, 0]
    run.do(Tick(), at=run.core.next_deadline())
    late = messages.Ask(0, 0, begun.trial, 1, 0, turn.attempt + 1, 7, 2, "late", 5)
    assert not run.core.keeps_payload("agent-0", late)
    run.say("agent-0", late)
    assert run.core.state.registry.workers["agent-0"].ready
    assert run.member().segments == []
    run.ask(0, 0)
    assert run.member().segments[0].attempt > late.attempt, "its place in the store may be taken"


def test_spare_episodes_are_ended_when_enough_have_ended():
    run = AgentRun(staleness={"spare_responses": 1, "max_staleness": 1})
    for episode in (0, 1, 2):
        run.ask(0, episode)
    for episode in (2, 0):
        run.sample(0, episode)
        run.end(0, episode)
    assert run.ended == [(0, 1, 1)]
    assert run.core.state.groups[0].state == "occupied"
    assert [item.episode for item in run.core.state.groups[0].contribute().items] == [0, 2]
    assert run.sent(messages.Abort)


def test_a_spare_episode_that_waits_for_a_worker_is_not_begun_for_a_group_that_is_complete():
    run = AgentRun(
        staleness={"spare_responses": 1, "max_staleness": 1}, agent={"replay": "never"}, capacity=3
    )
    for episode in (0, 1, 2):
        run.ask(0, episode)
    for episode in (0, 1, 2):
        run.sample(0, episode)
    run.end(0, 0)
    trial = run.begins[0, 2].trial
    run.core.state.unbegun[0, 2] = None  # as if its worker had gone while there was no other
    run.core.state.registry.workers["agent-0"].episodes.pop((0, 2))
    run.core.state.groups[0].episodes[2].leave()
    run.end(0, 1)
    assert run.core.state.groups[0].state == "occupied"
    assert run.begins[0, 2].trial == trial
    assert (0, 2) not in run.core.state.unbegun


def test_ends_and_turns_are_told_to_the_worker_that_has_the_episode():
    run = AgentRun(agents=2)
    run.ask_all()
    run.sample()
    peers = {c.peer for c in run.commands if isinstance(getattr(c, "message", None), Turn | EndEpisodes)}
    assert peers == {run.worker_of(0, 0)}
