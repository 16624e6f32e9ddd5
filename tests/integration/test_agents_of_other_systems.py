"""Functions for AReaL and Miles, with the unchanged `openai` package, in a real worker with processes."""

import asyncio
import re
from pathlib import Path

import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from protocol.messages import Ask, EpisodeEnded, EpisodeFailed
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving

pytest.importorskip("openai", reason="the package openai is not installed (pip install -e '.[test]')")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
MORE = """
class Stranger:
    async def run(self, data, **extra_kwargs):
        await Solver().run(data, **extra_kwargs)
        return {"chatcmpl-of-another": 1.0}

async def keyless(base_url, prompt):  # the path that ends without /v1, and no header at all
    import json, urllib.request
    body = json.dumps({"messages": prompt, "logprobs": True, "tools": []}).encode()
    def read():
        with urllib.request.urlopen(base_url + "/chat/completions", body) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
    return float(await __import__("asyncio").to_thread(read) == "yes")

class Careless:  # it catches the error of a limit, and goes on
    async def run(self, data, **extra_kwargs):
        where = {name: extra_kwargs[name] for name in ("base_url", "api_key", "http_client")}
        client = openai.AsyncOpenAI(**where, max_retries=0)
        talk = [{"role": "user", "content": "a"}]
        try:
            for _ in range(2):
                answer = await client.chat.completions.create(model="default", messages=talk)
                talk += [answer.choices[0].message.model_dump(exclude_none=True), talk[0]]
        except openai.BadRequestError:
            return data["gives"]

async def demanding(data, colour):
    return 1.0

async def mixed(policy, row):  # both answers are there before it goes on; it awaits its own one last
    import asyncio
    client = openai.OpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0)
    mine = asyncio.create_task(policy.chat([{"role": "user", "content": "a"}]))
    await asyncio.sleep(0)
    client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "b"}])
    await mine
    policy.reward(1.0)
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer):
    (code,) = re.findall(r"^```python\n(class Solver:.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "agents.py").write_text(f"import openai\n{code}{MORE}")
    tokenizer.save_pretrained(tmp_path)

    def make(name, **agent):
        return WorkerSettings(
            run_dir=str(tmp_path), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(),
            agent=AgentSettings(**{"max_turns": 3} | agent, function=f"{tmp_path}/agents.py:{name}"),
            rollout=RolloutSettings(max_prompt_tokens=400, max_response_tokens=100),
        )  # fmt: skip

    return make


def test_a_workflow_of_areal_plays_at_a_door_that_nobody_set_and_rewards_turns_by_their_ids(
    settings, tokenizer, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # which the client that it is given does not ask

    async def test(link):
        asks = []
        link.begin(1, question="a", answer="yes")
        for text in ("no", "yes"):
            asks.append((await link.hear(Ask))[0])
            link.answer(asks[-1], text, tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.turn_rewards, ended.ending, ended.earned) == (
            (1.0,), ((0, 0, 0.0), (0, 1, 1.0)), "stop", "turns"
        )  # fmt: skip
        assert (asks[1].member, asks[1].keep) == (0, asks[0].given + len("no") + 1)  # the same conversation

    made = settings("Solver")
    assert not made.agent.has_door
    asyncio.run(serving(made, test))


def test_an_id_of_no_answer_fails_the_episode_in_words(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, question="a", answer="yes")
        failed, _ = await link.hear(EpisodeFailed)
        assert failed.kind == "agent"
        assert (
            "No answer of this episode has the id 'chatcmpl-of-another'; expected the `id`" in failed.reason
        )

    asyncio.run(serving(settings("Stranger"), test))


@pytest.mark.parametrize("gives", ["garbage", {"chatcmpl-of-another": 1.0}, [1.0]])
def test_what_is_returned_after_a_limit_was_caught_is_read_as_ever(settings, tokenizer, gives):
    async def test(link):
        await link.play(1, tokenizer, gives=gives)
        failed, _ = await link.hear(EpisodeFailed)
        assert failed.kind == "agent"
        assert "The agent returned" in failed.reason

    asyncio.run(serving(settings("Careless", max_turns=1), test))


@pytest.mark.parametrize(("gives", "reward"), [(0.5, 0.5), ({}, 0.0)])
def test_a_limit_that_was_caught_is_the_ending_of_what_is_returned(settings, tokenizer, gives, reward):
    async def test(link):
        await link.play(1, tokenizer, gives=gives)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.ending) == ((reward,), "turns")

    asyncio.run(serving(settings("Careless", max_turns=1), test))


@pytest.mark.parametrize("name", ["run", "keyless"])
def test_a_function_of_miles_asks_at_an_address_that_holds_its_key(settings, tokenizer, name):
    async def test(link):
        await link.play(1, tokenizer, prompt="a", answer="yes")
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.turn_rewards, ended.earned) == ((1.0,), (), "end")
        link.begin(2, answer="yes")
        failed, _ = await link.hear(EpisodeFailed)
        assert (
            "The row has no `prompt`, which the agent's function takes; it has group, answer" in failed.reason
        )

    asyncio.run(serving(settings(name), test))


def test_a_turn_at_the_door_and_one_that_was_asked_for_beside_it_count_once_each(settings, tokenizer):
    async def test(link):
        link.begin(1)
        asks = [(await link.hear(Ask))[0] for _ in range(2)]
        for ask in asks:
            link.answer(ask, "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert ended.turn_rewards == ((asks[0].member, 0, 1.0),)  # of the answer that it awaited last

    asyncio.run(serving(settings("mixed", door=True), test))


def test_a_function_that_cannot_be_called_ends_the_start_in_one_sentence(settings):
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(serving(settings("demanding"), None))
    found = caught.value
    while isinstance(found, BaseExceptionGroup):
        (found,) = found.exceptions
    assert isinstance(found, ConfigError)
    assert "takes (data, colour); expected `data`, if it wants them `base_url`, `api_key` and" in str(found)
