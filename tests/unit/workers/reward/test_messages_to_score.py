"""What a reward function gets as `messages`: the conversation of an episode, or of a chat prompt."""

import asyncio
import json
from dataclasses import replace

import pytest

from controller.durability.store import Store
from protocol.errors import ConfigError
from protocol.messages import GIVEN, EpisodeEnded, Score, ScoreItem, Segment
from protocol.rewards.shapes import Signature, missing_problem, offered_names
from tests.support.agent_run import AgentRun
from tests.unit.workers.reward.test_reward_functions import REQUEST
from workers.reward.child import ScoringFailed
from workers.reward.functions import adapt
from workers.reward.worker import read_talks

TALK = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
EPISODES = replace(REQUEST, turns=[["4"], []], talks=[TALK, []])
CHAT = replace(REQUEST, prompt=TALK[:1])


def test_episodes_have_their_messages_and_none_where_they_were_held_in_tokens():
    assert asyncio.run(adapt(lambda completion, messages: len(messages))(EPISODES)) == [2.0, 0.0]
    taken = adapt(lambda completion, **columns: len(columns["messages"]))
    assert asyncio.run(taken(EPISODES)) == [2.0, 0.0], "whoever takes all columns has them, as a judge does"
    of_group = adapt(lambda completions, messages: [len(one) for one in messages])
    assert asyncio.run(of_group(EPISODES)) == [2.0, 0.0]


def test_a_chat_prompt_has_its_answer_behind_it():
    seen = []
    asyncio.run(adapt(lambda completion, messages: seen.append(messages) or 1.0)(CHAT))
    expected = [[*CHAT.prompt, {"role": "assistant", "content": said}] for said in REQUEST.completions]
    assert seen == expected
    asyncio.run(adapt(lambda completions, messages: seen.append(messages) or [1.0, 1.0])(CHAT))
    assert seen[-1] == expected


def test_an_answer_that_the_prompt_has_begun_is_one_message():
    begun = replace(REQUEST, prompt=TALK)
    seen = []
    asyncio.run(adapt(lambda completion, messages: seen.append(messages) or 1.0)(begun))
    assert seen == [[TALK[0], {**TALK[1], "content": f"4{said}"}] for said in REQUEST.completions]
    part = {"type": "text", "text": "4"}
    in_parts = replace(REQUEST, prompt=[TALK[0], {**TALK[1], "content": [part]}])
    asyncio.run(adapt(lambda completion, messages: seen.append(messages) or 1.0)(in_parts))
    said = [{"type": "text", "text": text} for text in REQUEST.completions]
    assert seen[2:] == [[TALK[0], {**TALK[1], "content": [part, one]}] for one in said]
    del seen[2:]
    row = {**REQUEST.row, "chat_template_kwargs": {"continue_final_message": False}}
    answered = replace(begun, row=row)
    asyncio.run(adapt(lambda completion, messages: seen.append(messages) or 1.0)(answered))
    assert seen[2:] == [[*TALK, {"role": "assistant", "content": said}] for said in REQUEST.completions]


def test_a_column_of_that_name_goes_before():
    for request in (EPISODES, CHAT, REQUEST):
        named = replace(request, row={**REQUEST.row, "messages": 7})
        assert asyncio.run(adapt(lambda completion, messages: messages)(named)) == [7.0, 7.0]


def test_a_prompt_of_text_has_none():
    with pytest.raises(ConfigError, match="asks for `messages`"):
        asyncio.run(adapt(lambda completion, messages: 1.0)(REQUEST))


def test_check_knows_who_has_them():
    signature = Signature(("completion", "messages"), ("completion", "messages"), False)
    chat, text = {"prompt": TALK[:1]}, {"prompt": "2+2?"}
    assert missing_problem(signature, offered_names(signature, chat), chat) is None
    assert missing_problem(signature, offered_names(signature, {}, is_agent=True), {}) is None
    assert "asks for `messages`" in (missing_problem(signature, offered_names(signature, text), text) or "")


def test_they_come_behind_the_tokens_of_those_that_have_some():
    items = [ScoreItem(0, "stop", (), ((0, 1),)), ScoreItem(1, "stop", ())]
    assert read_talks(items, [json.dumps(TALK).encode()]) == [TALK, []]
    for bad in (b"[", b"\xff", b"3"):
        with pytest.raises(ScoringFailed, match="messages of an episode cannot be read"):
            read_talks(items, [bad])


def test_an_episode_without_a_reward_takes_them_to_whoever_scores_it():
    run = AgentRun(reward={"function": "m:f"})
    run.ask_all()
    for episode in (0, 1):
        run.sample(0, episode)
    run.end(0, 0, None, talk=9)
    run.end(0, 1, None)
    (score,) = run.sent(Score)
    assert [item.talk for item in score.items] == [((0, 1),), ()]
    assert run.core.state.groups[0].episodes[0].has_talk


def test_the_store_keeps_them_until_the_group_is_dropped():
    store = Store(":memory:", cache_bytes=1 << 20)
    with store.transaction():
        store.put_row(7, b"{}")
        store.put_frames(EpisodeEnded(7, 1, 2, "stop", (), talk=4), (b"[{}]",))
    assert (
        store.fetch(Score(7, 1, (ScoreItem(1, "stop", (Segment(1, GIVEN, 0),), ((1, 2),)),)))[-1] == b"[{}]"
    )


def test_those_of_an_episode_that_was_not_begun_there_are_not_kept():
    run = AgentRun(reward={"function": "m:f"}, agents=2)
    run.ask_all()
    run.sample(0, 0)
    peer = run.worker_of(0, 0)
    ended = EpisodeEnded(0, 0, 1, "stop", (), talk=9)
    assert run.core.keeps_payload(peer, ended)
    assert not run.core.keeps_payload(peer, replace(ended, trial=2))
    assert not run.core.keeps_payload(peer, replace(ended, talk=1 << 30))
    assert not run.core.keeps_payload({"agent-0", "agent-1"}.difference({peer}).pop(), ended)
