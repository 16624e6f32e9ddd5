"""What is read out of the body of a request, field by field."""

import json

import pytest

from protocol.agents.settings import AgentSettings
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.agent.door.chat_request import CONSTRAINTS, NO_EFFECT, ONLY, read_request, run_fields
from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.request_fields import SAMPLED

OWN = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, stop=("END",))


def read(sampling=OWN, *, is_refusing=True, **fields):
    body = json.dumps({"messages": [{"role": "user", "content": "?"}], **fields}).encode()
    return read_request(body, sampling, is_refusing=is_refusing)


def test_a_field_that_is_null_is_as_if_it_were_not_there():
    """As clients send those that were not set."""
    names = [*SAMPLED, *ONLY, *CONSTRAINTS, *NO_EFFECT, "stop", "tools", "max_tokens"]
    names += ["max_completion_tokens", "logprobs", "stream", "stream_options", "model"]
    assert read(**dict.fromkeys(names)) == read()


@pytest.mark.parametrize(
    ("name", "same"),
    [("temperature", 1), ("top_k", -1), ("top_k", 0), ("stop", "END"), ("stop", ["END"]), ("min_p", 0.0)],
)
def test_the_distribution_of_the_run_may_be_asked_for(name, same):
    assert read(**{name: same}).disobeyed == ()


@pytest.mark.parametrize(
    ("name", "other"),
    [("temperature", True), ("temperature", 0.5), ("temperature", "1"), ("top_k", 5), ("top_k", False),
     ("stop", []), ("stop", "end"), ("frequency_penalty", 0.1), ("repetition_penalty", 0)],
)  # fmt: skip
def test_another_distribution_is_refused_by_name_or_told(name, other):
    with pytest.raises(DoorRefusal) as refused:
        read(**{name: other})
    assert (refused.value.status, f"`{name}`" in str(refused.value)) == (400, True)
    assert read(**{name: other}, is_refusing=False).disobeyed == (name,)


def test_a_run_that_cuts_its_tokens_has_no_request_without_a_cut():
    with pytest.raises(DoorRefusal, match="top_k"):
        read(OWN.model_copy(update={"top_k": 20}), top_k=-1)


def test_stops_may_be_named_in_any_order():
    own = OWN.model_copy(update={"stop": ("Observation:", "</code>")})
    assert read(own, stop=["</code>", "Observation:"]).disobeyed == ()
    for other in (["</code>"], ["</code>", "Observation:", "x"], ["</code>", 1], [["</code>"]]):
        with pytest.raises(DoorRefusal, match="`stop`"):
            read(own, stop=other)


NAMED = {"type": "function", "function": {"name": "add"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tool_choice", "required"), ("tool_choice", NAMED), ("parallel_tool_calls", False),
     ("response_format", {"type": "json_object"}), ("response_format", SCHEMA), ("logit_bias", {"1": 5}),
     ("reasoning_effort", "low"), ("verbosity", "low")],
)  # fmt: skip
def test_a_constraint_on_the_answer_is_refused_or_ignored_as_the_run_says(name, value):
    """As pydantic-ai, LangChain and smolagents send them by themselves."""
    with pytest.raises(DoorRefusal, match=f"`{name}` is .*other_sampling: ignore") as refused:
        read(**{name: value})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_value")
    asked = read(**{name: value}, is_refusing=False)
    assert (asked.disobeyed, asked.reads_calls) == ((name,), True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tool_choice", 1), ("parallel_tool_calls", "no"), ("response_format", "json"), ("n", 2),
     ("top_logprobs", 3), ("modalities", ["audio"])],
)  # fmt: skip
def test_what_is_malformed_or_would_be_another_answer_is_refused_in_any_run(name, value):
    with pytest.raises(DoorRefusal, match=f"`{name}`"):
        read(**{name: value}, is_refusing=False)


def test_the_smaller_of_two_limits_counts_and_one_beyond_all_bounds_is_none_that_matters():
    assert read(max_tokens=7, max_completion_tokens=5).max_tokens == 5
    assert read(max_tokens=10**30).max_tokens == 2**31 - 1
    assert read().max_tokens is None
    for value in (0, -1, 1.5, True, "7"):
        with pytest.raises(DoorRefusal, match="at least 1"):
            read(max_tokens=value)


def test_what_is_said_about_tools_and_streams_is_read():
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    asked = read(tools=[tool], tool_choice="none", stream=True, stream_options={"include_usage": True})
    assert (asked.tools, asked.reads_calls) == ([tool], False)
    assert (asked.is_stream, asked.has_usage, asked.has_logprobs) == (True, True, False)
    assert read(tools=[]).tools is None
    assert read(tool_choice="auto").reads_calls


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 2), ("n", True), ("n", 1.0), ("logit_bias", {"1": 5}), ("tool_choice", "required"),
     ("response_format", {"type": "json_object"}), ("wishes", 1), ("stream", 1), ("model", 3)],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_refused_by_its_name(name, value):
    with pytest.raises(DoorRefusal, match=f"`{name}`") as refused:
        read(**{name: value})
    assert refused.value.status == 400


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.5, "top_k": 3, "stop": ["x"], "min_tokens": 2}])
def test_the_fields_of_the_run_are_taken_by_its_own_door(sampling):
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), agent=AgentSettings(),
        rollout=RolloutSettings(max_response_tokens=7, sampling=sampling),
    )  # fmt: skip
    fields = run_fields(settings)
    assert {*fields} == {"temperature", "top_p", "max_tokens", *sampling}
    body = json.dumps({"messages": [], **fields}).encode()
    request = read_request(body, settings.rollout.sampling)
    assert (request.max_tokens, request.disobeyed) == (7, ())
