"""A policy behind an endpoint: what is asked of it, asked again, or ends an attempt in words."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import reduce
from types import SimpleNamespace

import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from tests.support.stub_endpoint import serving

pytest.importorskip("httpx2", reason="the package httpx2 is not installed (pip install -e '.[judge]')")

from workers.agent.child import Ended
from workers.agent.messages import TOO_DEEP
from workers.evaluate import endpoint as module
from workers.evaluate.endpoint import Endpoint, EndpointEpisodes, EndpointResponses, _Playing
from workers.evaluate.evaluator import _player
from workers.evaluate.played import Lost

QUESTION = [{"role": "user", "content": "1 + 1?"}]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(module, "BACKOFF_S", 0.0)


def chat(stub, messages=QUESTION, tools=None, key="", **sampling):
    async def ask():
        async with Endpoint(stub.url, "small", key, SamplingSettings(**sampling)) as endpoint:
            return await endpoint.chat(messages, tools, 7)

    return asyncio.run(ask())


def test_the_run_s_sampling_model_and_key_are_sent():
    with serving("two") as stub:
        answer = chat(stub, key="sk-1", temperature=0.5, top_k=3)
        assert (answer.message["content"], answer.ending, answer.tokens) == ("two", "stop", 3)
        assert stub.asked == [
            {
                "model": "small", "temperature": 0.5, "top_p": 1.0, "top_k": 3, "messages": QUESTION,
                "max_tokens": 7,
            }
        ]  # fmt: skip
        assert stub.keys == ["Bearer sk-1"]


@pytest.mark.parametrize(("key", "sent"), [("sk-1\n", "Bearer sk-1"), ("sk\n1", None)])
def test_the_key_of_the_environment_is_sent_as_a_header_takes_it_or_refused(monkeypatch, key, sent):
    monkeypatch.setenv("OPENAI_API_KEY", key)

    async def ask(stub):
        settings = SimpleNamespace(
            agent=SimpleNamespace(is_on=False), evaluation_sampling=SamplingSettings(),
            rollout=SimpleNamespace(max_response_tokens=7),
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            player = await _player(stack, settings, {"base_url": stub.url, "model": "small"})
            return await player.play(0, 0, {"prompt": "1 + 1?"})

    with serving("two") as stub:
        if sent is None:
            with pytest.raises(ConfigError, match="environment variable OPENAI_API_KEY"):
                asyncio.run(ask(stub))
        else:
            asyncio.run(ask(stub))
            assert stub.keys == [sent]


def test_what_may_be_better_next_time_is_asked_again():
    with serving((503, "busy"), (429, "slow down"), (200, "no JSON"), "two") as stub:
        assert chat(stub).message["content"] == "two"
        assert len(stub.asked) == 4


def test_an_endpoint_that_never_answers_is_named_with_its_last_words():
    with serving((503, "busy")) as stub, pytest.raises(Lost, match=r"6 requests.*it answered 503: busy"):
        chat(stub)


def test_a_wrong_key_or_model_ends_the_evaluation_at_once():
    with serving((404, "no such model")) as stub:
        with pytest.raises(ConfigError, match=r"no such model.*Check --base-url, --model and OPENAI_API_KEY"):
            chat(stub)
        assert len(stub.asked) == 1


def test_an_endpoint_without_a_protocol_ends_the_evaluation_at_once():
    with pytest.raises(ConfigError, match=r"--base-url 127.0.0.1:9/v1 cannot be asked: .* Expected http://"):
        chat(SimpleNamespace(url="127.0.0.1:9/v1"))


def counted(tokens):
    choice = {"finish_reason": "stop", "message": {"content": "one"}}
    return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}})


@pytest.mark.parametrize(
    "strange", [counted(float("inf")), (200, '{"choices": ' + "[" * 100_000)], ids=["infinite", "deep"]
)
def test_a_strange_answer_is_asked_for_again(strange):
    with serving(strange, "two") as stub:
        assert chat(stub).message["content"] == "two"


def test_no_answer_has_fewer_than_no_tokens():
    with serving(counted(-5)) as stub:
        assert chat(stub).tokens == 0


def test_an_answer_that_does_not_end_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(module, "REQUEST_S", 0.0)
    with serving("two") as stub, pytest.raises(Lost, match=r"6 requests.*the request took longer than 0 s"):
        chat(stub)


def test_a_request_that_is_refused_ends_its_attempt_alone():
    with serving((400, "too long")) as stub, pytest.raises(Lost, match="too long"):
        chat(stub)


def respond(stub, row):
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), rollout=RolloutSettings(max_response_tokens=9),
    )  # fmt: skip

    async def play():
        async with Endpoint(stub.url, "small", "", SamplingSettings()) as endpoint:
            return await EndpointResponses(settings, endpoint).play(0, 0, row)

    return asyncio.run(play())


def test_a_prompt_of_text_is_asked_as_a_user_s_message():
    with serving("two") as stub:
        played = respond(stub, {"prompt": "1 + 1?"})
        assert (played.completion, played.prompt, played.reward) == ("two", "1 + 1?", None)
        assert stub.asked[0]["messages"] == QUESTION
        assert played.transcript[-1] == {"role": "assistant", "content": "two"}
        with pytest.raises(Lost, match="no prompt that an endpoint takes"):
            respond(stub, {"prompt_ids": [1, 2]})


def test_tools_and_arguments_of_the_chat_template_are_sent_where_a_row_has_them():
    tools = [{"type": "function", "function": {"name": "f"}}]
    with serving("two") as stub:
        respond(stub, {"prompt": QUESTION, "chat_template_kwargs": {"enable_thinking": False}})
        respond(stub, {"prompt": QUESTION, "tools": json.dumps(tools), "chat_template_kwargs": None})
        assert stub.asked[0]["chat_template_kwargs"] == {"enable_thinking": False}
        assert stub.asked[1]["tools"] == tools
        assert "tools" not in stub.asked[0]
        assert "chat_template_kwargs" not in stub.asked[1]
        with pytest.raises(Lost, match="`chat_template_kwargs` no mapping"):
            respond(stub, {"prompt": QUESTION, "chat_template_kwargs": "no"})


def test_an_answer_that_is_no_message_is_asked_for_again():
    broken = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    images = {"role": "assistant", "content": [{"type": "image_url"}]}
    with serving(broken, images, {"role": "assistant", "content": None}) as stub:
        assert chat(stub).message == {"role": "assistant", "content": ""}
        assert len(stub.asked) == 3


class Child:
    """A process of an agent that keeps what it is told."""

    def __init__(self):
        self.told = []

    def answer(self, number, question, answer):
        self.told.append(answer["message"]["content"])

    def refuse(self, number, question, limit, reason):
        self.told.append((limit, reason))


def ask_one_after_the_other(stub, *requests, kwargs=None, **agent):
    """What the process of an episode is told, and why the episode forked."""
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), rollout=RolloutSettings(max_response_tokens=9),
        agent=AgentSettings(function="a.py:f", **agent),
    )  # fmt: skip

    async def play():
        child, playing = Child(), _Playing(kwargs)
        async with Endpoint(stub.url, "small", "", SamplingSettings()) as endpoint:
            episodes = EndpointEpisodes(settings, endpoint)
            episodes._pool, episodes._playing = SimpleNamespace(answered=lambda child: None), {1: playing}
            for number, asked in enumerate(requests):
                episodes.on_ask(child, 1, number, asked)
                await asyncio.gather(*playing.tasks)
        return child.told, playing.conversations.forks

    return asyncio.run(play())


def test_what_the_policy_may_say_in_an_episode_limits_what_is_asked_of_an_endpoint():
    with serving("two") as stub:  # three tokens each time
        told, _ = ask_one_after_the_other(stub, *[{"chat": QUESTION}] * 3, max_sampled_tokens=5)
        assert [asked["max_tokens"] for asked in stub.asked] == [5, 2]
        assert told == ["two", "two", ("tokens", "The policy has said 6 tokens (agent.max_sampled_tokens).")]


def test_arguments_of_the_chat_template_are_sent_with_every_turn_of_an_agent():
    with serving("two") as stub:
        ask_one_after_the_other(stub, *[{"chat": QUESTION}] * 2, kwargs={"enable_thinking": False})
        ask_one_after_the_other(stub, {"chat": QUESTION})
        told = [asked.get("chat_template_kwargs") for asked in stub.asked]
        assert told == [{"enable_thinking": False}] * 2 + [None]


def test_forks_of_an_episode_at_an_endpoint_are_told_by_their_cause():
    answer = {"role": "assistant", "content": "two"}
    with serving("two") as stub:
        requests = [
            {"chat": QUESTION},
            {"chat": [*QUESTION, answer, *QUESTION]},
            {"chat": [*QUESTION, {**answer, "content": "three"}, *QUESTION]},
            {"chat": [{"role": "user", "content": "a title?"}], "is_untrained": True},
        ]
        told, forks = ask_one_after_the_other(stub, *requests)
        assert (told, forks) == (["two"] * 4, ["edited"])


def test_messages_that_are_nested_too_deep_are_refused_and_no_answer_is_waited_for():
    nested = {"role": "user", "content": "?", "more": reduce(lambda inner, _: [inner], range(100_000), 0)}
    with serving("two") as stub:
        told, _ = ask_one_after_the_other(stub, {"chat": [nested]}, {"chat": QUESTION})
        assert told == [("", TOO_DEEP), "two"]


class Asking(Child):
    """A process whose agent asks these requests, one after the other, and ends."""

    asks_at_door = False

    def __init__(self, requests, ended):
        super().__init__()
        self.requests, self.ended = requests, ended

    def begin(self, number, seed, row, door):
        self.asking = asyncio.create_task(self.ask(number))

    async def ask(self, number):
        for place, asked in enumerate(self.requests):
            self.episodes.on_ask(self, number, place, asked)
            await asyncio.gather(*self.episodes._playing[number].tasks)
        self.episodes.on_ended(number, self.ended)

    def cancel(self, number):
        """It is over already."""


def play_episode(child, url="http://there/v1", **agent):
    """What an episode in this process came to."""
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), rollout=RolloutSettings(max_response_tokens=9),
        agent=AgentSettings(function="a.py:f", retries=0, **agent),
    )  # fmt: skip

    async def place(is_alone):
        return child

    async def play():
        async with Endpoint(url, "small", "", SamplingSettings()) as endpoint:
            child.episodes = EndpointEpisodes(settings, endpoint)
            child.episodes._pool = SimpleNamespace(answered=lambda child: None, place=place)
            return await child.episodes.play(0, 0, {})

    return asyncio.run(play())


def test_what_an_episode_came_to_is_its_first_conversation_that_training_would_use():
    shown = [{"role": "user", "content": "0 + 1?"}, {"role": "assistant", "content": "one"}, *QUESTION]
    title = {"chat": [{"role": "system", "content": "Give it a title."}, *shown], "is_untrained": True}
    branch = {"chat": [{"role": "system", "content": "Check it."}, *shown]}
    long = {"finish_reason": "length", "message": {"content": "A sum"}}
    cut = (200, json.dumps({"choices": [long], "usage": {"completion_tokens": 5}}))
    with serving("two", "yes", cut) as stub:
        played = play_episode(Asking([{"chat": shown}, branch, title], Ended(None, (), (), "")), stub.url)
    assert (played.completion, played.ending, played.tokens, played.turns) == ("two", "stop", 6, 2)
    assert played.prompt == "0 + 1?"
    assert played.talk == [*shown, {"role": "assistant", "content": "two"}]
    assert played.said == ["two"]


@pytest.mark.parametrize(
    ("agent", "wanted", "reward"),
    [
        ({"on_limit": "zero"}, None, 0.0),
        ({"on_limit": "zero", "max_turn_tokens": 5}, 7, 0.0),
        ({"on_limit": "mask", "max_sampled_tokens": 5}, None, 0.0),
        ({"on_limit": "score"}, None, 1.0),
        ({"on_limit": "zero"}, 5, 1.0),
    ],
    ids=["response", "turn", "sampled", "scored", "own"],
)
def test_a_last_turn_that_a_limit_cuts_counts_as_with_a_checkpoint(agent, wanted, reward):
    choice = {"finish_reason": "length", "message": {"content": "tw"}}
    cut = (200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 5}}))
    asking = Asking([{"chat": QUESTION, "max_tokens": wanted}], Ended(1.0, (), (), ""))
    with serving(cut) as stub:
        played = play_episode(asking, stub.url, **agent)
    assert (played.reward, played.ending) == (reward, "stop" if wanted == 5 else "length")


def test_a_turn_that_was_just_answered_counts_once_among_the_turns_of_its_episode():
    """Another conversation of the episode asks in the moment that the answer goes out."""

    class Parallel(Asking):
        def answer(self, number, question, answer):
            super().answer(number, question, answer)
            if len(self.told) == 1:
                asyncio.get_running_loop().call_soon(self.ask_more, number)
            else:
                self.episodes.on_ended(number, self.ended)

        def refuse(self, number, question, limit, reason):
            super().refuse(number, question, limit, reason)
            self.episodes.on_ended(number, self.ended)

        def ask_more(self, number):
            self.episodes.on_ask(self, number, 1, {"chat": QUESTION})

        async def ask(self, number):
            self.episodes.on_ask(self, number, 0, {"chat": QUESTION})

    child = Parallel([], Ended(1.0, (), (), ""))
    with serving("two") as stub:
        played = play_episode(child, stub.url, max_turns=2)
    assert (child.told, played.turns) == (["two", "two"], 2)


class AtDoor(Child):
    """A process whose agent asks the endpoint itself, and returns this reward."""

    asks_at_door = True

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def begin(self, number, seed, row, door):
        self.episodes.on_ended(number, Ended(self.reward, (), (), ""))

    def count(self, number, place):
        """Its turn is counted."""

    def cancel(self, number):
        """It is over already."""


@pytest.mark.parametrize("reward", [1.0, None])
def test_what_an_agent_asked_by_itself_is_not_scored_as_an_empty_answer(reward):
    if reward is None:
        with pytest.raises(Lost, match="returned no reward, and asked the endpoint itself"):
            play_episode(AtDoor(reward))
    else:
        assert play_episode(AtDoor(reward)).reward == reward
