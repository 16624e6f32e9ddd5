"""Tools of an environment of OpenEnv: offered to the policy, called, and paid by turn."""

import asyncio

import pytest

from tests.unit.workers.agent.kinds.test_agent_kinds import Script
from workers.agent.kinds.openenv_tools import play_tools, schema_of, wants_calls
from workers.agent.kinds.openenv_wire import Refusal
from workers.agent.kinds.results import Returned
from workers.agent.policy import AgentPolicy

TOOLS = [{"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}, {"name": "submit"}]


class Sums:
    """Adds; `submit` ends with a reward for 5."""

    def __init__(self, **answers):
        self.asked, self._answers = [], answers

    async def step(self, action):
        self.asked.append(action)
        name, given = action["tool_name"], action["arguments"]
        if name in self._answers:
            return {"observation": self._answers[name], "reward": None, "done": False}
        if name == "submit":
            return {"observation": {"result": "thanks"}, "reward": float(given["sum"] == 5), "done": True}
        if name != "add":
            raise Refusal("no such tool")
        result = {"content": [{"type": "text", "text": str(given["a"] + given["b"])}], "data": 0}
        return {
            "observation": {"tool_name": name, "result": result, "error": None},
            "reward": 0.25,
            "done": 0,
        }


def play(session, *answers, row=None, first=""):
    script = Script(*answers)
    policy = AgentPolicy(script, seed=1)
    row = {"prompt": "2 and 3"} if row is None else row
    result = asyncio.run(play_tools(session, policy, row, first=first, tools=TOOLS))
    return result, policy.notes, script.asked


def told(asked):
    return [message["content"] for message in asked[-1]["chat"] if message["role"] == "tool"]


def test_the_policy_calls_tools_until_the_environment_is_done():
    session = Sums()
    calls = [(("add", '{"a": 2, "b": 3}'), ("add", '{"a": 1, "b": 1}')), (("submit", '{"sum": 5}'),)]
    result, notes, asked = play(session, *calls, "never said")
    assert (result, notes.rewards) == (Returned.TURN_REWARDS, {0: 0.5, 1: 1.0})
    assert asked[0]["chat"] == [{"role": "user", "content": "2 and 3"}]
    assert asked[0]["tools"] == [schema_of(tool) for tool in TOOLS]
    assert asked[0]["tools"][0]["function"] == {
        "name": "add", "description": "Adds.", "parameters": {"type": "object"},
    }  # fmt: skip
    assert told(asked) == ["5", "2"]
    assert session.asked[0] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 2, "b": 3}}


def test_an_answer_without_a_call_ends_the_episode_with_what_there_is():
    call = (("add", '{"a": 2, "b": 3}'),)
    for answers in ((call, "5"), (call,)):  # and so does a budget that is spent
        result, notes, _ = play(Sums(), *answers)
        assert (result, notes.rewards) == (Returned.TURN_REWARDS, {0: 0.25})
    assert play(Sums(), "5")[0] is Returned.TURN_REWARDS, "and nothing is what its turns have earned"


def test_a_call_that_cannot_be_made_is_told_to_the_policy():
    calls = [(("add", "{"),), (("add", "[]"),), (("fly", "{}"),), (("fails", "{}"),)]
    session = Sums(fails={"result": None, "error": {"error_type": "timeout", "message": "too late"}})
    result, notes, asked = play(session, *calls, "done")
    assert (result, notes.rewards) == (Returned.TURN_REWARDS, dict.fromkeys(range(4), 0.0))
    assert [text.partition(":")[0] for text in told(asked)] == ["Error"] * 4
    assert [text.partition(": ")[2][:20] for text in told(asked)] == [
        "the arguments of add", "the arguments of add", "no such tool", "too late",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain", "plain"),
        ({"data": {"a": 1}}, '{"a": 1}'),
        ([1, 2], "[1, 2]"),
        (None, "null"),
        ({"content": ["x"]}, '{"content": ["x"]}'),
    ],
)
def test_whatever_a_call_gives_is_a_text(result, text):
    assert told(play(Sums(shows={"result": result}), (("shows", "{}"),), "done")[2]) == [text]


def test_the_prompt_is_the_rows_with_what_the_environment_says_behind_it():
    assert play(Sums(), "x", first=" please")[2][0]["chat"][0]["content"] == "2 and 3 please"
    assert play(Sums(), "x", row={}, first="go")[2][0]["chat"][0]["content"] == "go"
    with pytest.raises(RuntimeError, match=r"Neither has the row a `prompt`, nor does .* say a text"):
        play(Sums(), "x", row={})


def test_actions_that_are_calls_are_known_by_their_schema():
    kind = {"const": "call_tool", "type": "string"}
    assert wants_calls({"properties": {"type": kind, "tool_name": {}, "arguments": {}}})
    assert not wants_calls({"properties": {"type": {"type": "string"}, "tool_name": {}, "arguments": {}}})
    assert not wants_calls({"properties": {"text": {}}})
    assert not wants_calls({})
