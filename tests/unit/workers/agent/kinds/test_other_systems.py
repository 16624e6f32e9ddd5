"""Functions for AReaL and Miles: which shape one has, what it is given, and what it may return."""

import asyncio
import math

import pytest

from protocol.agents.function_shapes import EPISODE, SESSION, WORKFLOW, shape_of
from protocol.errors import ConfigError
from workers.agent.door import http_client
from workers.agent.kinds.chosen_kind import asks_at_door, make_episode
from workers.agent.kinds.results import BadResult, Returned, reward_of
from workers.agent.policy import AgentPolicy, DoorAddress, Notes

ADDRESS = DoorAddress("http://127.0.0.1:9/v1", "sk-1", {"temperature": 0.5})


class Heard:
    """The line of an episode whose client at the door has had three answers, the last one untrained."""

    def __init__(self, notes):
        self._notes = notes

    def read_all(self):
        for word in ((0, "", "one"), (1, "", "two"), (-1, "", "title")):
            self._notes.count(*word)


def play(target, row=None, *, door=ADDRESS, **more):
    """(the reward of the episode and where it was earned, its notes)"""
    notes = Notes()
    policy = AgentPolicy(Heard(notes), seed=1, notes=notes, door=door)
    result = asyncio.run(make_episode(target, **more)(policy, row or {}))
    return reward_of(result, notes), notes


def workflow(result):
    async def run(data, **extra_kwargs):
        return result

    return run


def session(result):
    async def run(base_url, prompt, request_kwargs, metadata):
        return result

    return run


class Workflow:
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def run(self, data, **extra_kwargs):
        self.seen = data, extra_kwargs
        return data["worth"] + self.bonus


class Tools:
    def reset(self, **row): ...

    def get_reward(self):
        return 1.0

    def run(self, data: str) -> str:
        """Run it."""
        return data


class Both:
    async def run(self, policy, row, data=None):
        return 1.0


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (("policy", "row"), EPISODE),
        (("policy", "row", "data"), EPISODE),
        (("self", "data", "extra_kwargs"), WORKFLOW),
        (("base_url", "data"), WORKFLOW),
        (("base_url", "prompt"), SESSION),
        (("base_url", "prompt", "request_kwargs", "metadata", "kwargs"), SESSION),
        (("prompt", "completion"), None),
        ((), None),
    ],
)
def test_a_shape_is_told_by_the_names_of_parameters(names, shape):
    assert shape_of(names) is shape


def test_what_asks_at_the_door_is_known_and_a_class_of_tools_stays_one():
    assert [asks_at_door(each) for each in (workflow(1), session(1), Workflow, Workflow())] == [True] * 4
    assert [asks_at_door(each) for each in (Both, Tools, 3)] == [False] * 3
    assert asks_at_door(Tools, "function")
    assert not asks_at_door(Workflow, "gym")


def test_a_workflow_is_given_its_row_the_door_and_a_client_of_its_own():
    agent = Workflow()
    assert play(agent, {"worth": 0.5})[0] == (0.5, "end")
    data, more = agent.seen
    assert (data, more["base_url"], more["api_key"]) == ({"worth": 0.5}, ADDRESS.base_url, "sk-1")
    assert more["http_client"].is_closed
    first = more["http_client"]
    play(agent, {"worth": 0.5})
    assert agent.seen[1]["http_client"] is not first
    assert play(Workflow, {"worth": 0.5}, options={"bonus": 1.0})[0] == (1.5, "end")


def test_a_workflow_that_takes_less_is_given_less_and_without_a_package_there_is_no_client(monkeypatch):
    def run(data, api_key, size):  # not async: it runs in a thread
        return float(len(api_key) * size)

    assert play(run, options={"size": 2})[0] == (8.0, "end")
    monkeypatch.setattr(http_client, "PACKAGES", {})
    agent = Workflow()
    play(agent, {"worth": 1})
    assert agent.seen[1]["http_client"] is None


def test_rewards_by_completion_id_are_those_of_turns():
    reward, notes = play(workflow({"two": 0.5, "one": 0.25}))
    assert (reward, notes.rewards) == ((0.75, "turns"), {1: 0.5, 0: 0.25})
    assert play(workflow(2)) == ((2.0, "end"), Notes())
    assert play(workflow(None))[0] == (None, "end")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"three": 1.0}, "No answer of this episode has the id 'three'"),
        ({"title": 1.0}, "The answer 'title' came from /untrained/v1, and is not trained"),
        ({"score": 1.0}, "expected a number, .completion id: reward.*the id 'score'"),
        ({"one": "much"}, "got 'much' of type str; expected a finite number"),
        ({"one": math.nan}, "got nan of type float"),
        ({0: 1.0}, "of which 0 is no completion id"),
        ({}, "returned an empty mapping; expected a number, .completion id"),
        ("1", "returned '1' of type str; expected a number, .completion id: reward"),
        ([1.0], "of type list; expected a number"),
        (math.inf, "returned inf of type float; expected a number"),
    ],
)
def test_what_no_workflow_returns_is_an_error(result, words):
    with pytest.raises(BadResult, match=words):
        play(workflow(result))


def test_ids_of_an_endpoint_that_is_no_door_of_ours_only_add_up():
    elsewhere = ADDRESS._replace(is_elsewhere=True)
    assert play(workflow({"a": 0.5, "b": 0.25}), door=elsewhere)[0] == (0.75, "turns")
    assert elsewhere.with_key == "http://127.0.0.1:9"


def test_a_session_is_given_messages_the_other_columns_and_how_the_run_samples():
    seen = []

    async def run(base_url, prompt, request_kwargs=None, metadata=None, **kwargs):
        seen.append((prompt, metadata))
        request_kwargs["n"] = 1  # its own copy
        return base_url == "http://127.0.0.1:9/e/sk-1" and request_kwargs == {"temperature": 0.5, "n": 1}

    talk = [{"role": "user", "content": "a"}]
    assert play(run, {"prompt": "a", "answer": 3, "metadata": {"id": 7}})[0].value == 1.0
    assert play(run, {"prompt": talk, "metadata": "text"})[0].value == 1.0
    assert seen == [(talk, {"answer": 3, "id": 7}), (talk, {"metadata": "text"})]
    assert "n" not in ADDRESS.request_kwargs


def test_an_entry_of_metadata_wins_over_a_column_of_its_name():
    async def run(base_url, prompt, metadata):
        return metadata["answer"] == 4 and "metadata" not in metadata

    row = {"prompt": "a", "answer": 3, "metadata": {"answer": 4}}
    assert play(run, row)[0].value == 1.0
    assert play(run, dict(reversed(row.items())))[0].value == 1.0, "in whatever order the row has them"


def test_a_session_returns_a_number_or_a_mapping_whose_rest_is_told():
    row = {"prompt": "a"}
    reward, notes = play(session({"reward": 0.5, "exit_status": "done"}), row)
    assert (reward, notes.log) == ((0.5, "end"), "{'exit_status': 'done'}\n")
    results = (1, None, {}, {"reward": None}, {"steps": 3})
    values = [play(session(result), row)[0].value for result in results]
    assert values == [1.0, None, None, None, None]


@pytest.mark.parametrize("result", ["1", [1.0], {"reward": "much"}, {"reward": math.nan}, math.inf])
def test_what_no_session_returns_is_an_error(result):
    with pytest.raises(BadResult, match=r"The agent returned .*; expected a number, ..reward.: number"):
        play(session(result), {"prompt": "a"})


def test_a_mapping_without_rewards_is_nothing_earned_where_a_limit_was_reached():
    class AtTheLimit(Heard):
        def read_all(self):
            self._notes.count(0, "tokens", "one")

    notes = Notes()
    policy = AgentPolicy(AtTheLimit(notes), seed=1, notes=notes, door=ADDRESS)
    assert asyncio.run(make_episode(workflow({}))(policy, {})) is Returned.TURN_REWARDS
    with pytest.raises(BadResult, match="an empty mapping"):
        play(workflow({}))


def test_a_session_without_a_prompt_is_an_error_that_names_the_columns():
    with pytest.raises(BadResult, match=r"no `prompt`, .* has question"):
        play(session(1), {"question": "a"})


async def needs_more(base_url, prompt, tools):
    return 1.0


async def positional(data, /):
    return 1.0


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (needs_more, {}, "takes .base_url, prompt, tools.; expected `base_url` and `prompt`, if it wants"),
        (session(1), {"size": 1}, "`agent.options` gives .size"),
        (workflow(1), {"base_url": "x"}, "`agent.options` gives .base_url"),
        (positional, {}, "by position only"),
    ],
)
def test_a_function_that_cannot_be_called_by_these_names_is_refused(target, options, words):
    with pytest.raises(ConfigError, match=words):
        make_episode(target, options=options)


def test_without_a_door_the_key_that_opens_one_is_named():
    with pytest.raises(ValueError, match=r"set `agent\.door: true`"):
        play(workflow(1), door=None)
