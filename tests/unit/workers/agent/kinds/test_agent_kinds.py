"""Every kind of agent against a policy in memory."""

import asyncio
import copy
import functools

import pytest

from protocol.errors import ConfigError
from workers.agent.kinds.chosen_kind import make_episode
from workers.agent.kinds.results import Returned
from workers.agent.kinds.tools import first_messages
from workers.agent.policy import AgentPolicy, BudgetExceeded, EnvironmentFailed


class Script:
    """A policy that answers what it was told to, then says that its budget is spent."""

    def __init__(self, *answers):
        self._answers, self.asked = list(answers), []

    async def ask(self, question):
        self.asked.append(copy.deepcopy(question))
        if not self._answers:
            raise BudgetExceeded("turns")
        answer = self._answers.pop(0)
        if isinstance(answer, list):
            return {"sampled": answer, "ending": "stop"}
        if isinstance(answer, tuple):
            calls = [
                {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for place, (name, arguments) in enumerate(answer)
            ]
            return {"message": {"role": "assistant", "content": "", "tool_calls": calls}}
        return {"message": {"role": "assistant", "content": answer}}


def play(target, *answers, row=None, kind="auto", options=None, seed=3):
    """(what the episode returned, the policy's notes, what it was asked)"""
    script = Script(*answers)
    policy = AgentPolicy(script, seed=seed)
    result = asyncio.run(make_episode(target, kind=kind, options=options)(policy, row or {}))
    return result, policy.notes, script.asked


# -- functions ------------------------------------------------------------------------------------------


async def guess(policy, row, bonus=0.0):
    turn = await policy.generate([1, row["start"]])
    policy.reward(0.5)
    policy.metric("tokens", len(turn.token_ids))
    return float(sum(turn.token_ids)) + bonus


class Player:
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def run(self, policy, row):
        return await guess(policy, row, self.bonus)


class Callable(Player):
    run = None

    async def __call__(self, policy, row):
        return await guess(policy, row, self.bonus)


@pytest.mark.parametrize("target", [guess, Player, Player(), Callable])
def test_a_function_and_an_object_with_one_are_the_same(target):
    result, notes, asked = play(target, [4, 5], row={"start": 2})
    assert (result, notes.turns, notes.rewards, notes.metrics) == (9.0, 1, {0: 0.5}, {"tokens": 2.0})
    assert asked[0] | {"max_tokens": None} == {"tokens": [1, 2], "max_tokens": None}


def test_options_are_given_by_name():
    assert play(guess, [4], row={"start": 2}, options={"bonus": 1.0})[0] == 5.0
    assert play(Player, [4], row={"start": 2}, options={"bonus": 2.0})[0] == 6.0
    for target in (guess, Player):
        with pytest.raises(ConfigError, match="bonsu"):
            make_episode(target, options={"bonsu": 1})


def not_async(policy, row):
    return 1.0


async def other_parameters(policy, task):
    return 1.0


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        (not_async, "auto", "expected `async def episode"),
        (other_parameters, "auto", "of no kind.*function: .*gym: .*tools: "),
        (other_parameters, "function", "takes .policy, task.; expected `policy` and `row`"),
        (3, "auto", "int 3, which is of no kind"),
        (3, "tools", "a class with `reset`, `get_reward`"),
        (3, "gym", "a class of environments"),
        (3, "function", "expected `async def episode"),
    ],
)
def test_what_is_no_agent_is_refused_in_words(target, kind, words):
    with pytest.raises(ConfigError, match=words):
        make_episode(target, kind=kind)


# -- tools ----------------------------------------------------------------------------------------------


class Adder:
    """Adds."""

    def __init__(self, step=1):
        self.step, self.total, self.closed = step, 0, []

    def reset(self, answer, prompt=None):
        self.answer = answer
        return " Use add."

    def add(self, amount: int, times: int = 1) -> int:
        """Add to the total.

        Args:
            amount: what to add.
            times: how often.
        """
        if amount == 13:
            raise ValueError("not thirteen")
        self.total += self.step * amount * times
        return self.total

    async def fetch(self, key: str | None = None) -> str:
        """Fetch something."""
        if key == "down":
            raise EnvironmentFailed("the store is down")
        return f"<{key}>"

    def get_reward(self, completion):
        return float(self.total == self.answer) if completion == "done" else -1.0

    def close(self):
        CLOSED.append(self.total)


CLOSED = []


def test_what_is_rewarded_is_the_policy_s_answer_and_no_column_of_that_name():
    row = {"answer": 0, "completion": "done", "messages": []}
    assert play(Adder, "wrong", row=row)[0] == -1.0
    assert play(Adder, "done", row=row | {"completion": "wrong"})[0] == 1.0


def test_public_methods_are_tools_and_their_answers_go_back_to_the_policy():
    CLOSED.clear()
    calls = (("add", '{"amount": 2}'), ("add", '{"amount": 2, "times": 2}'))
    row = {"answer": 6, "prompt": "Make 6."}
    result, notes, asked = play(Adder, calls, (("fetch", "{}"),), "done", row=row)
    assert (result, notes.turns, CLOSED) == (1.0, 3, [6])
    assert asked[0]["chat"] == [{"role": "user", "content": "Make 6. Use add."}]
    schemas = {tool["function"]["name"]: tool["function"] for tool in asked[0]["tools"]}
    assert [*schemas] == ["add", "fetch"]
    assert schemas["add"]["description"] == "Add to the total."
    assert schemas["add"]["parameters"] == {
        "type": "object", "required": ["amount"],
        "properties": {
            "amount": {"type": "integer", "description": "what to add."},
            "times": {"type": "integer", "description": "how often."},
        },
    }  # fmt: skip
    assert schemas["fetch"]["parameters"]["properties"]["key"] == {"type": "string", "nullable": True}
    told = [message["content"] for message in asked[2]["chat"] if message["role"] == "tool"]
    assert told == ["2", "6", "<None>"]
    names = [message["name"] for message in asked[2]["chat"] if message["role"] == "tool"]
    assert names == ["add", "add", "fetch"]  # the template of Hermes refuses a tool's answer without


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("subtract", "{}"), "Error: There is no tool 'subtract'. There are: add, fetch."),
        (("", "nonsense"), "Error: There is no tool ''"),
        (("reset", "{}"), "Error: There is no tool 'reset'"),
        (("add", "{"), "Error: The arguments of add are no JSON"),
        (("add", "[1]"), "Error: The arguments of add are no JSON object"),
        (("add", "{}"), "Error: add lacks the argument 'amount'"),
        (("add", '{"amount": 1, "x": 2}'), "Error: add has no argument 'x'. It has: amount, times."),
        (("add", '{"amount": "1"}'), "Error: The argument 'amount' of add is '1'; expected"),
        (("add", '{"amount": true}'), "Error: The argument 'amount' of add is True"),
        (("add", '{"amount": 13}'), "Error: not thirteen"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_by_an_error(call, words):
    _, _, asked = play(Adder, (call,), "done", row={"answer": 0, "prompt": "x"})
    assert asked[1]["chat"][-1]["content"].startswith(words)


def logged(function):
    """As decorators are written that know nothing of `async`."""

    @functools.wraps(function)
    def wrapper(*arguments, **named):
        return function(*arguments, **named)

    return wrapper


class Decorated:
    @logged
    async def reset(self, **row):
        return " Go."

    @logged
    async def add(self, x: int) -> str:
        """Adds one."""
        return str(x + 1)

    @logged
    async def save(self):
        return b"kept"

    @logged
    async def load(self, state):
        self.state = state

    @logged
    async def get_reward(self):
        return 2.0

    @logged
    async def close(self):
        CLOSED.append("decorated")


class DecoratedText:
    @logged
    async def reset(self, seed, options):
        return f"{seed}?", {}

    @logged
    async def step(self, text):
        return "", 0.5, True, False, {}

    async def close(self):
        CLOSED.append("text")


@logged
async def decorated(policy, row):
    return float((await policy.chat([{"role": "user", "content": "x"}]))["content"])


def test_what_is_async_below_a_decorator_is_awaited():
    CLOSED.clear()
    result, _, asked = play(Decorated, (("add", '{"x": 1}'),), "done", row={"prompt": "Add."})
    assert [message["content"] for message in asked[1]["chat"]] == ["Add. Go.", "", "2"]
    assert (result, play(DecoratedText, "one")[1].rewards, play(decorated, "3")[0]) == (2.0, {0: 0.5}, 3.0)
    assert CLOSED == ["decorated", "text"]


@pytest.mark.parametrize(
    ("content", "whole"),
    [([{"type": "text", "text": "What is it?"}], "What is it? Begin."), (None, " Begin."), ("", " Begin.")],
)
def test_what_reset_says_stands_behind_the_text_of_the_last_message(content, whole):
    prompt = [{"role": "user", "content": content}]
    assert first_messages({"prompt": prompt}, " Begin.") == [{"role": "user", "content": whole}]
    assert first_messages({"prompt": [{"role": "user"}]}, " Begin.")[0]["content"] == " Begin."


def test_a_limit_ends_the_turns_and_what_was_earned_stands():
    result, notes, _ = play(Adder, (("add", '{"amount": 2}'),), row={"answer": 2, "prompt": "x"})
    assert (result, notes.limit) == (-1.0, "turns")


def test_an_environment_that_fails_is_no_answer():
    with pytest.raises(EnvironmentFailed, match="the store is down"):
        play(Adder, (("fetch", '{"key": "down"}'),), row={"answer": 2, "prompt": "x"})


class Undocumented(Adder):
    def hum(self, tune: str):
        return tune


class Untyped(Adder):
    def hum(self, tune):
        """Hum."""


class Strange(Adder):
    def hum(self, tune: bytes):
        """Hum."""


class Idle:
    def reset(self): ...
    def get_reward(self): ...


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Undocumented, "The tool 'hum' has no docstring"),
        (Untyped, "The parameter 'tune' of the tool 'hum' has no type"),
        (Strange, "The type <class 'bytes'> of hum.tune. is none that JSON has"),
        (Idle, "The class Idle has no tools"),
    ],
)
def test_tools_that_cannot_be_told_are_refused_at_the_start(target, words):
    with pytest.raises(ConfigError, match=words):
        make_episode(target)


# -- environments ---------------------------------------------------------------------------------------


class Countdown:
    """Gymnasium's interface."""

    def __init__(self, start=2):
        self.left = start

    def reset(self, seed=None, options=None):
        self.said = [(seed, options)]
        return f"{self.left} left", {}

    def step(self, text):
        self.left -= 1
        return f"{self.left} left", 0.5 if text == "down" else 0.0, self.left == 0, False, {}


class Silent(Countdown):
    def step(self, text):
        return 3, 0.5, False, False, {}


class Short(Countdown):
    def step(self, text):
        return "x", 0.5


def test_rewards_of_steps_are_those_of_turns():
    result, notes, asked = play(Countdown, "down", "down", options={"start": 2})
    assert (result, notes.rewards, notes.turns) == (Returned.TURN_REWARDS, {0: 0.5, 1: 0.5}, 2)
    assert asked[1]["chat"] == [
        {"role": "user", "content": "2 left"},
        {"role": "assistant", "content": "down"},
        {"role": "user", "content": "1 left"},
    ]
    result, notes, _ = play(Countdown, "down", options={"start": 3})  # the budget ends it
    assert (result, notes.rewards) == (Returned.TURN_REWARDS, {0: 0.5})


@pytest.mark.parametrize(
    ("target", "words"), [(Silent, "The environment observed 3"), (Short, "`step` returned")]
)
def test_environments_that_are_none_are_told_so(target, words):
    with pytest.raises(TypeError, match=words):
        play(target, "down", "down")
