"""Environments that are saved before each turn, and loaded where an episode was cut off."""

import asyncio

import pytest

from protocol.errors import ConfigError
from workers.agent.kinds.chosen_kind import make_episode
from workers.agent.kinds.results import Returned
from workers.agent.policy import AgentPolicy, BudgetExceeded


class Script:
    """Answers, and the state that came with each request."""

    def __init__(self, *answers):
        self._answers, self.states, self.talks = list(answers), [], []

    async def ask(self, question):
        self.states.append(question.get("state"))
        self.talks.append(list(question["chat"]))
        if not self._answers:
            raise BudgetExceeded("turns")
        return {"message": {"role": "assistant", "content": self._answers.pop(0)}}


class Counting:
    """A text environment whose state is a number."""

    resets = 0

    def reset(self, *, seed, options):
        type(self).resets += 1
        self.count = 0
        return f"count from {options['first']}"

    def step(self, text):
        self.count += int(text)
        return f"{self.count} now", float(text), self.count >= 6, False, {}

    def save(self):
        return str(self.count).encode()

    def load(self, state):
        self.count = int(state)


class Lamp:
    """A class of tools."""

    resets = 0

    def reset(self, prompt):
        type(self).resets += 1
        self.is_on = False

    def switch(self) -> str:
        """Switch the lamp."""
        self.is_on = not self.is_on
        return "on" if self.is_on else "off"

    def get_reward(self):
        return float(self.is_on)

    async def save(self):
        return b"1" if self.is_on else b"0"

    async def load(self, state):
        self.is_on = state == b"1"


def play(target, script, *, row, packed=None, **more):
    """What the episode returns, from its start or from what was saved."""
    policy = AgentPolicy(script, seed=3, **more)
    if packed is not None:
        policy.saved = policy.notes.restore(packed)
    return asyncio.run(make_episode(target)(policy, row)), policy


def test_a_text_environment_goes_on_from_its_last_saved_turn():
    Counting.resets = 0
    first = Script("1", "2", "3")
    assert play(Counting, first, row={"first": 0})[0] is Returned.TURN_REWARDS
    second = Script("3")
    result, policy = play(Counting, second, row={"first": 0}, packed=first.states[2])
    assert (result, Counting.resets) == (Returned.TURN_REWARDS, 1)
    assert second.talks == [first.talks[2]], "its first request is the one that the state came with"
    assert policy.notes.rewards == {0: 1.0, 1: 2.0, 2: 3.0}, "rewards of turns before it are known"


def test_a_class_of_tools_goes_on_from_its_last_saved_turn():
    class Calls(Script):
        async def ask(self, question):
            told = await super().ask(question)
            if told["message"]["content"] == "call":
                call = {"id": "a", "type": "function", "function": {"name": "switch", "arguments": "{}"}}
                told["message"]["tool_calls"] = [call]
            return told

    Lamp.resets = 0
    first = Calls("call", "done")
    assert play(Lamp, first, row={"prompt": "light?"})[0] == 1.0
    second = Calls("done")
    assert play(Lamp, second, row={"prompt": "light?"}, packed=first.states[1])[0] == 1.0
    assert Lamp.resets == 1
    assert second.talks == [first.talks[1]]


def test_half_of_the_two_is_refused_where_the_class_is_taken():
    class Half(Lamp):
        load = None

    with pytest.raises(ConfigError, match=r"Half has `save\(\)` and no `load\(state\)`"):
        make_episode(Half)


def test_tools_that_are_called_save_and_load_and_take_arguments_stay_tools():
    class Notes(Lamp):
        def save(self, text: str) -> str:
            """Save a note.

            Args:
                text: What it says.
            """
            return text

        def load(self, name: str) -> str:
            """Read a note.

            Args:
                name: Of the note.
            """
            return name

    offered = []

    class Looks(Script):
        async def ask(self, question):
            offered.extend(tool["function"]["name"] for tool in question["tools"])
            return await super().ask(question)

    script = Looks("done")
    play(Notes, script, row={"prompt": "light?"})
    assert offered == ["load", "save", "switch"]
    assert script.states == [None]


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("text", TypeError, "`save` returned 'text' of type str; expected bytes"),
        (bytes((1 << 20) + 1), ValueError, r"agent.max_state_mb allows 1 MB"),
    ],
)
def test_a_state_that_cannot_be_kept_is_named(state, error, words):
    class Saves(Counting):
        def save(self):
            return state

    with pytest.raises(error, match=words):
        play(Saves, Script("1"), row={"first": 0}, max_state_mb=1)


def test_an_environment_that_saves_to_a_file_is_left_alone():
    class Files(Counting):
        def save(self, path):
            raise AssertionError("it is not ours to call")

    script = Script("6")
    assert play(Files, script, row={"first": 0})[1].notes.rewards == {0: 6.0}
    assert script.states == [None]
