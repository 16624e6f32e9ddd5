"""A policy behind an endpoint: what is asked of it, asked again, or ends an attempt in words."""

import asyncio

import pytest

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

from workers.evaluate import endpoint as module
from workers.evaluate.endpoint import Endpoint, EndpointResponses
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
