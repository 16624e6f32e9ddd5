"""Rows become prompts by template, system prompt and filters; a missing column is named with its source."""

import json
from datetime import date, datetime, time

import numpy as np
import pytest
from pydantic import ValidationError

from controller.config.data import RowSettings
from controller.data.rows import RowShape, UnusableRow
from protocol.errors import ConfigError
from workers.reward.worker import encode_prompt

ROW = {"question": "1+1?", "answer": "2", "level": 3, "info": {"topic": "sums"}}


def shaped(row: object = ROW, *, source: str = "", **settings: object) -> dict[str, object] | None:
    found = RowShape(RowSettings.model_validate(settings), source=source).shaped("here, line 1", row)
    return None if found is None else json.loads(found)


def test_a_template_makes_the_prompt_of_columns():
    found = shaped(prompt="{info.topic} {{level {level}}}: {question}")
    assert found["prompt"] == "sums {level 3}: 1+1?"
    assert found["question"] == "1+1?"
    renamed = shaped(prompt="Q: {q}", columns={"q": "question", "topic": "info.topic"})
    assert (renamed["prompt"], renamed["topic"]) == ("Q: 1+1?", "sums")


@pytest.mark.parametrize(
    "template", ["{}", "{0}", "{question!r}", "{question:>9}", "{question[0]}", "{question"]
)
def test_a_template_that_names_no_column_is_refused_when_it_is_read(template):
    with pytest.raises(ValidationError, match=r"by name alone|braces match"):
        RowSettings(prompt=template)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"prompt": "{qestion}"},
            r"here, line 1 has no column 'qestion', which data\.prompt names; it has \['an",
        ),
        ({"prompt": "{info}"}, r"in the column 'info', which the template"),
        ({"prompt": "p", "where": {"lvl": [1]}}, r"no column 'lvl', which data\.where names"),
        ({"columns": {"prompt": "info.question"}}, r"no column 'info\.question', which data\.columns names"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_who_names_it(settings, words):
    with pytest.raises(ConfigError, match=words):
        shaped(**settings)


def test_chat_and_system_make_messages_and_keep_what_a_row_has():
    user = {"role": "user", "content": "1+1?"}
    rules = {"role": "system", "content": "Be brief."}
    assert shaped(prompt="{question}", is_chat=True)["prompt"] == [user]
    assert shaped(prompt="{question}", system="Be brief.")["prompt"] == [rules, user]
    own = [{"role": "system", "content": "Own."}, user]
    assert shaped({"prompt": own}, system="Be brief.")["prompt"] == own


def test_tools_and_arguments_of_the_template_go_with_messages():
    settings = {"tools": [{"name": "t"}], "chat_template_kwargs": {"a": 1, "b": 2}}
    found = shaped(
        {"prompt": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"b": 3}}, **settings
    )
    assert (found["tools"], found["chat_template_kwargs"]) == ([{"name": "t"}], {"a": 1, "b": 3})
    assert "tools" not in shaped({"prompt": "text"}, **settings)


def test_null_of_a_padded_table_overrides_no_argument_of_the_template():
    """Parquet has each key of a column in each row."""
    row = {"prompt": "x", "chat_template_kwargs": {"b": None, "c": 3}}
    settings = RowSettings.model_validate({"is_chat": True, "chat_template_kwargs": {"a": 1, "b": 2}})

    def arguments(*, is_padded: bool) -> dict[str, object]:
        found = RowShape(settings, is_padded=is_padded).shaped("here, row 1", row)
        assert found is not None
        return json.loads(found)["chat_template_kwargs"]

    assert arguments(is_padded=True) == {"a": 1, "b": 2, "c": 3}
    assert arguments(is_padded=False) == {"a": 1, "b": None, "c": 3}


@pytest.mark.parametrize("row", [{}, {"prompt": "text"}, {"prompt": [{"role": "user", "content": "x"}]}])
def test_a_row_of_an_agent_has_the_arguments_of_the_template_whatever_its_prompt_is(row):
    def of_agent(row, **settings):
        shape = RowShape(RowSettings.model_validate(settings), is_for_agent=True)
        return json.loads(shape.shaped("here, line 1", row))

    settings = {"chat_template_kwargs": {"a": 1, "b": 2}}
    assert of_agent(row, **settings)["chat_template_kwargs"] == {"a": 1, "b": 2}
    own = row | {"chat_template_kwargs": {"b": 3}}
    assert of_agent(own, **settings)["chat_template_kwargs"] == {"a": 1, "b": 3}
    assert of_agent(own)["chat_template_kwargs"] == {"b": 3}
    assert "chat_template_kwargs" not in of_agent(row)
    with pytest.raises(ConfigError, match=r"here, line 1 has 'no' as `chat_template_kwargs`"):
        of_agent(row | {"chat_template_kwargs": "no"})


def test_the_chat_template_hears_of_tools_and_arguments():
    class Tokenizer:
        chat_template = "{{ messages }}"

        def apply_chat_template(self, talk: object, **how: object) -> list[int] | str:
            if not how["tokenize"]:  # asked for what it writes
                return str(talk)
            self.heard = how
            return [1]

    tokenizer = Tokenizer()
    row = shaped({"prompt": [{"role": "user", "content": "x"}]}, tools=[{"name": "t"}],
                 chat_template_kwargs={"enable_thinking": False, "tokenize": False})  # fmt: skip
    assert encode_prompt(tokenizer, json.dumps(row).encode(), limit=9) == [1]
    assert tokenizer.heard["tools"] == [{"name": "t"}]
    assert tokenizer.heard["enable_thinking"] is False
    assert tokenizer.heard["tokenize"] is True
    row["tools"] = "none"
    with pytest.raises(ValueError, match="no list of schemas"):
        encode_prompt(tokenizer, json.dumps(row).encode(), limit=9)


@pytest.mark.parametrize(
    ("settings", "is_kept"),
    [
        ({"min_chars": 4, "max_chars": 4}, True), ({"min_chars": 5}, False), ({"max_chars": 3}, False),
        ({"where": {"level": [2, 3]}}, True), ({"where": {"level": ["3"]}}, False),
        ({"where": {"info.topic": ["sums"]}}, True),
    ],
)  # fmt: skip
def test_filters_leave_rows_out(settings, is_kept):
    assert (shaped(columns={"prompt": "question"}, **settings) is not None) is is_kept


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2026, 1, 31), "2026-01-31"), (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
        (time(12), "12:00:00"), (np.datetime64("2026-01-31"), "2026-01-31"),
        (np.datetime64("2026-01-31T12:00"), "2026-01-31T12:00:00"),
    ],
)  # fmt: skip
def test_a_filter_takes_dates_and_times_by_the_text_that_a_reward_gets(value, text):
    row = {"prompt": "p", "when": value}
    assert shaped(row, where={"when": [text]}) == {"prompt": "p", "when": text}
    assert shaped(row, where={"when": ["2026-02-01"]}) is None


def test_numbers_of_numpy_are_numbers():
    """A function of prompts draws them with numpy's generators."""
    row = {"prompt": "p", "n": np.int64(3), "x": np.float32(0.5), "is": np.bool_(True), "in": [np.int8(1)]}
    assert shaped(row) == {"prompt": "p", "n": 3, "x": 0.5, "is": True, "in": [1]}
    with pytest.raises(UnusableRow, match="because of 'x'"):
        shaped({"prompt": "p", "x": np.float32("nan")})


def test_the_name_of_a_source_goes_with_its_rows():
    assert shaped({"prompt": "x", "source": "web"}, source="easy")["source"] == "easy"
    assert (
        shaped({"prompt": "x", "source": "web"}, source="easy", columns={"site": "source"})["site"] == "web"
    )


# -- supervised ----------------------------------------------------------------------------------------------

QUESTION = {"role": "user", "content": "q"}


def example(row: dict[str, object]) -> tuple[object, object]:
    found = RowShape(RowSettings(), is_supervised=True).shaped("here, line 1", row)
    assert found is not None
    row = json.loads(found)
    return row["prompt"], row["response"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "q", "response": ""}, "has '' as `response`; expected text, not empty"),
        ({"prompt": "q", "response": None}, "has 'None' as `response`"),
        ({"messages": [QUESTION]}, "`messages` of user; expected a conversation that ends with an answer"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "a"}, QUESTION]}, "assistant, user;"),
        ({"messages": [QUESTION, {"role": "assistant", "content": None}]}, "as the content of the last"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "", "tool_calls": []}]}, "not empty"),
        ({"messages": []}, r"has \[\] as `messages`"),
    ],
)  # fmt: skip
def test_a_row_without_an_answer_is_one_to_leave_out(row, words):
    with pytest.raises(UnusableRow, match=f"here, line 1 .*{words}"):
        example(row)


@pytest.mark.parametrize(
    "row", [{"prompt": "q"}, {"prompt": "q", "response": 3}, {"prompt": "q", "response": QUESTION}]
)
def test_a_response_that_is_missing_or_no_text_is_no_fault_of_one_row(row):
    with pytest.raises(ConfigError) as refused:
        example(row)
    assert not isinstance(refused.value, UnusableRow)


def test_the_last_message_of_a_conversation_keeps_what_it_has():
    said = {"role": "assistant", "content": "a", "reasoning_content": "because"}
    assert example({"messages": [QUESTION, said]}) == ([QUESTION], said)
    nothing = {"reasoning_content": None, "tool_calls": []}  # as Parquet writes keys that it has not
    assert example({"messages": [QUESTION, {"role": "assistant", "content": "a", **nothing}]})[1] == "a"
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert example({"messages": [QUESTION, {**call, "content": None}]})[1] == {**call, "content": ""}


def test_an_answer_of_text_parts_is_their_text():
    """As data sets for several kinds of models have all their messages."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert example({"messages": [QUESTION, {"role": "assistant", "content": parts}]}) == ([QUESTION], "ab")
    image = {"role": "assistant", "content": [{"type": "image", "url": "a"}]}
    with pytest.raises(ConfigError, match="expected text, not empty"):
        example({"messages": [QUESTION, image]})


def test_a_response_may_be_a_message_as_trl_has_its_completions():
    answer = {"role": "assistant", "content": "a"}
    assert example({"prompt": [QUESTION], "response": [answer]}) == ([QUESTION], "a")
    thought = answer | {"reasoning_content": "r"}
    assert example({"prompt": [QUESTION], "response": [thought]}) == ([QUESTION], thought)
    with pytest.raises(UnusableRow, match="of user, user; expected a conversation that ends with an answer"):
        example({"prompt": [QUESTION], "response": [QUESTION]})


@pytest.mark.parametrize(
    "talk", [[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], '[{"role": "user"}]']
)
def test_messages_that_are_none_are_named_with_what_is_expected(talk):
    with pytest.raises(ConfigError, match="as `messages`; expected a list of messages, each with `role`"):
        example({"messages": talk})


def test_a_conversation_in_arrays_of_numpy_as_pandas_reads_one_is_one_of_lists():
    parts = np.array([{"type": "text", "text": "Hello."}], dtype=object)
    talk = np.array([{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}])
    tools = np.array([{"type": "function", "function": {"name": "f"}}] * 2, dtype=object)
    found = shaped({"prompt": talk, "tools": tools}, system="No.", tools=[{"type": "function"}])
    assert found == {
        "prompt": [talk[0], {"role": "user", "content": [*parts]}],
        "tools": [*tools],
    }
    with pytest.raises(UnusableRow, match=r"has '\[\]' as `prompt`"):
        shaped({"prompt": np.array([])})
    answered = np.array([*talk, {"role": "assistant", "content": "Hi."}])
    row = json.loads(RowShape(RowSettings(), is_supervised=True).shaped("here", {"messages": answered}))
    assert row["response"] == "Hi."


def test_the_length_of_a_content_in_parts_is_that_of_their_text():
    parts = [{"type": "text", "text": "1+1"}, {"type": "text", "text": "?"}]
    row = {"prompt": [{"role": "user", "content": parts}]}
    assert shaped(row, min_chars=4, max_chars=4) == row
    assert shaped(row, min_chars=5) is None
    assert shaped(row, max_chars=3) is None


def test_a_row_that_one_filter_leaves_out_may_lack_the_column_of_the_next():
    where = {"kind": ["math"], "level": [5]}
    assert shaped({"prompt": "p", "kind": "code"}, where=where) is None
    assert shaped({"prompt": "p", "kind": "math", "level": 5}, where=where) is not None


def test_a_filter_on_a_column_of_arrays_keeps_no_row_and_ends_nothing():
    assert shaped({"prompt": "p", "level": np.array([1, 2])}, where={"level": [1]}) is None


@pytest.mark.parametrize("number", [np.float64("nan"), np.int64(3)])
def test_a_number_of_numpy_in_the_place_of_text_is_refused_in_words(number):
    """As a table of pandas has it where a value is missing."""
    with pytest.raises(ConfigError, match="as `prompt`"):
        shaped({"prompt": number})
    answer = {"role": "assistant", "content": "Hi.", "weight": np.int64(3)}
    for row, words in (
        ({"messages": number}, "as `messages`"),
        ({"prompt": "p", "response": number}, "as `response`; expected text"),
    ):
        with pytest.raises(ConfigError, match=words):
            example(row)
    assert example({"messages": [QUESTION, answer]})[1] == {**answer, "weight": 3}
