"""Environments of OpenEnv: classes in this process, and what becomes of texts, without openenv-core."""

import asyncio

import pytest
from pydantic import BaseModel

from protocol.errors import ConfigError
from tests.unit.workers.agent.kinds.test_agent_kinds import play
from workers.agent.kinds.chosen_kind import KINDS, load_agent, make_episode
from workers.agent.kinds.results import Returned
from workers.agent.policy import AgentPolicy


class Guess(BaseModel):
    metadata: dict = {}
    number: int


class Seen(BaseModel):
    done: bool = False
    reward: float | None = None
    metadata: dict = {}
    text: str
    left: int = 0


class Hidden:
    """Guess the number that the seed says; two guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    closed = 0

    def __init__(self, bonus=0.0):
        self.bonus, self.left = bonus, 2

    def reset(self, seed=None, episode_id=None, level=0):
        self.secret = seed + level
        return Seen(text="guess")

    def step(self, action: Guess, timeout_s=None):
        self.left -= 1
        is_right = action.number == self.secret
        return Seen(text="no", left=self.left, reward=is_right + self.bonus, done=is_right or not self.left)

    def close(self):
        Hidden.closed += 1


WORDS = {"action": "number"}


def test_a_class_is_played_and_its_rewards_are_those_of_turns():
    closed = Hidden.closed
    result, notes, asked = play(Hidden, "1", "3", options=WORDS)
    assert (result, notes.rewards) == (Returned.TURN_REWARDS, {0: 0.0, 1: 1.0})
    assert asked[1]["chat"][-1]["content"] == "no"
    assert Hidden.closed == closed + 1


def test_columns_of_the_row_go_to_reset_and_other_options_to_the_class():
    options = {**WORDS, "reset": "level", "bonus": 0.5}
    assert play(Hidden, "7", row={"level": 4, "more": 1}, options=options)[1].rewards == {0: 1.5}
    with pytest.raises(RuntimeError, match=r"names the column 'level'; the row has none"):
        play(Hidden, "7", options=options)


def test_a_reward_function_may_say_the_score():
    result, notes, _ = play(Hidden, "1", "3", options={**WORDS, "score": "function"})
    assert (result, notes.rewards) == (None, {})
    with pytest.raises(
        ConfigError, match=r"`agent.options.score` is 'judge'; expected environment or function"
    ):
        make_episode(Hidden, options={**WORDS, "score": "judge"})


def test_what_is_no_action_is_told_to_the_policy():
    result, notes, asked = play(Hidden, "seven", "3", options=WORDS)
    assert (result, notes.rewards) == (Returned.TURN_REWARDS, {0: 0.0, 1: 1.0})
    assert asked[1]["chat"][-1]["content"].startswith("Error: ")
    _, _, asked = play(Hidden, "{3", "[3]", '{"number": 3}', options={"action": "json"})
    assert "the action is no JSON" in asked[1]["chat"][-1]["content"]
    assert "the action is no JSON object" in asked[2]["chat"][-1]["content"]


def last_number(text):
    if not text.split()[-1].isdigit():
        raise ValueError("end with a number")
    return {"number": int(text.split()[-1])}


def both(observation):
    return f"{observation['text']} {observation['left']}"


def test_functions_make_actions_and_texts():
    here = f"{__name__}:"
    options = {"action": f"{here}last_number", "observation": f"{here}both"}
    _, notes, asked = play(Hidden, "is it", "is it 3", options=options)
    assert notes.rewards == {0: 0.0, 1: 1.0}
    assert [talk["chat"][-1]["content"] for talk in asked] == ["guess 0", "Error: end with a number"]


def test_an_observation_is_a_named_field_or_json():
    assert play(Hidden, "3", options={**WORDS, "observation": "json"})[2][0]["chat"][0]["content"] == (
        '{"text": "guess", "left": 0}'
    )
    with pytest.raises(
        RuntimeError, match=r"`agent.options.observation` is 'board'; the observation has text"
    ):
        play(Hidden, "3", options={**WORDS, "observation": "board"})


def test_how_a_text_becomes_an_action_has_to_be_said_unless_it_is_plain():
    with pytest.raises(ConfigError, match=r"fields for one are number. Set `agent.options.action`"):
        make_episode(Hidden)

    class Told(BaseModel):
        number: int
        text: str

    class Plain(Hidden):
        def step(self, action: Told):
            raise AssertionError

    make_episode(Plain)


def test_objects_that_share_something_are_refused():
    class Shared(Hidden):
        SUPPORTS_CONCURRENT_SESSIONS = False

    with pytest.raises(ConfigError, match=r"Shared.SUPPORTS_CONCURRENT_SESSIONS is False"):
        make_episode(Shared, options=WORDS)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"The environment server http://127.0.0.1:9 does not answer"):
        make_episode("http://127.0.0.1:9")


def test_the_kind_goes_by_what_the_object_has_and_ids_are_not_imported():
    assert next(name for name, kind in KINDS.items() if kind.is_of(Hidden)) == "openenv"
    assert load_agent("http://h:1", "auto") == "http://h:1"
    assert load_agent("gsm8k", "verifiers") == "gsm8k"
    assert load_agent(f"{__name__}:Hidden", "auto").__name__ == "Hidden"
    with pytest.raises(ConfigError, match="not of the form"):
        load_agent("gsm8k", "auto")


def test_an_episode_that_is_ended_closes_its_environment():
    async def ended():
        is_asked = asyncio.Event()

        class Slow:
            async def ask(self, question):
                is_asked.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(make_episode(Hidden, options=WORDS)(AgentPolicy(Slow(), seed=1), {}))
        await is_asked.wait()
        assert Hidden.closed == before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = Hidden.closed
    asyncio.run(asyncio.wait_for(ended(), 300))
    assert Hidden.closed == before + 1
