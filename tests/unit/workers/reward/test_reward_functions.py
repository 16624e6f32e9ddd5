"""Every shape of reward function gets what its parameters name, and gives finite numbers or words."""

from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigError
from workers.reward.functions import ScoreRequest, adapt

REQUEST = ScoreRequest(
    group=7,
    row={"prompt": "2+2=", "answer": "4", "data_source": "sums"},
    prompt="2+2=",
    prompt_ids=[1, 2],
    completions=["4", "5"],
    completion_ids=[[4], [5]],
    endings=["stop", "length"],
)


async def test_a_group_function_gets_parallel_lists_and_columns() -> None:
    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        assert prompts == ["2+2=", "2+2="]
        assert columns["answer"] == ["4", "4"]
        assert columns["completion_ids"] == [[4], [5]]
        return [float(c == a) for c, a in zip(completions, columns["answer"], strict=True)]

    assert await adapt(reward)(REQUEST) == [1.0, 0.0]


async def test_a_group_function_without_keywords_gets_only_what_it_declares() -> None:
    assert await adapt(
        lambda completions, answer: [c == a for c, a in zip(completions, answer, strict=True)]
    )(REQUEST) == [1.0, 0.0]


async def test_a_function_that_takes_completions_for_messages_as_trl_gives_them_is_told() -> None:
    def score(completions: list[Any], **columns: Any) -> list[float]:
        return [float(completion[0]["content"] == "4") for completion in completions]

    async def later(completions: list[Any]) -> list[float]:
        return score(completions)

    for function in (score, later):
        with pytest.raises(TypeError) as raised:
            await adapt(function)(REQUEST)
        assert "Take `completion` for `completion[0]" in raised.value.__notes__[0]

    with pytest.raises(TypeError) as raised:
        await adapt(lambda completions: completions + 1)(REQUEST)
    assert not hasattr(raised.value, "__notes__")


async def test_an_async_group_function_is_awaited() -> None:
    async def reward(completions: list[str]) -> Any:
        return np.asarray([0.5, 0.25], dtype=np.float32)

    assert await adapt(reward)(REQUEST) == [0.5, 0.25]


async def test_compute_score_gets_its_ground_truth_from_the_answer() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
        assert (data_source, extra_info) == ("sums", None)
        return {"score": solution_str == ground_truth, "seen": 1}

    assert await adapt(compute_score)(REQUEST) == [1.0, 0.0]


async def test_compute_score_gets_its_ground_truth_from_nested_data() -> None:
    row = {"reward_model": {"ground_truth": "5"}, "answer": "4"}
    request = ScoreRequest(0, row, "p", [1], ["4", "5"], [[4], [5]], ["stop", "stop"])
    scorer = adapt(lambda data_source, solution_str, ground_truth: float(solution_str == ground_truth))
    assert await scorer(request) == [0.0, 1.0]


async def test_named_arguments_are_chosen_by_name() -> None:
    def reward(completion: str, answer: str, ending: str, group: int, bonus: float = 0.5) -> float:
        assert group == 7
        return (completion == answer) + bonus * (ending == "length")

    assert await adapt(reward)(REQUEST) == [1.0, 0.5]


async def test_ids_and_all_columns_reach_a_function_with_keywords() -> None:
    def reward(prompt, completion, prompt_ids, completion_ids, **data):  # type: ignore[no-untyped-def]
        assert (prompt, prompt_ids, data["answer"]) == ("2+2=", [1, 2], "4")
        return completion_ids[0]

    assert await adapt(reward)(REQUEST) == [4.0, 5.0]


QUESTION = [{"role": "user", "content": "2+2="}]
NAMES = ("prompt", "prompt_ids", "messages", "info")
CHANGED = ScoreRequest(
    0, {"prompt": QUESTION, "info": {"tests": ["t"]}}, QUESTION, [1, 2], ["4"] * 3, [[4]] * 3, ["stop"] * 3
)


async def test_what_a_function_changes_no_other_response_sees() -> None:
    def reward(prompt: list[Any], prompt_ids: list[int], messages: list[Any], info: dict[str, Any]) -> float:
        prompt.append({"role": "assistant", "content": "4"})
        prompt[0]["content"] += "?"
        prompt_ids.clear()
        assert (len(prompt), prompt[0]["content"], messages[0]["content"]) == (2, "2+2=?", "2+2=")
        return float(info.pop("tests") == ["t"])

    async def scored_later(completion: str, prompt: list[Any], **columns: Any) -> float:
        return reward(prompt, columns["prompt_ids"], columns["messages"], columns["info"])

    assert await adapt(lambda completion, **all: reward(*map(all.get, NAMES)))(CHANGED) == [1.0] * 3
    assert await adapt(scored_later)(CHANGED) == [1.0] * 3
    assert (
        await adapt(lambda solution_str, data_source, ground_truth=None, **all: reward(*map(all.get, NAMES)))(
            CHANGED
        )
        == [1.0] * 3
    )
    assert (len(QUESTION), CHANGED.row["info"]) == (1, {"tests": ["t"]})


async def test_the_entries_of_a_group_are_apart() -> None:
    def rewards(prompts: list[Any], prompt_ids: list[Any], info: list[Any], **columns: Any) -> list[float]:
        for prompt, ids, messages in zip(prompts, prompt_ids, columns["messages"], strict=True):
            prompt.append({"role": "assistant", "content": "4"})
            ids.append(3)
            messages[0]["content"] += "?"
        assert [*map(len, prompts)] == [2] * 3
        assert prompt_ids == [[1, 2, 3]] * 3
        assert [talk[0]["content"] for talk in columns["messages"]] == ["2+2=?"] * 3
        return [float(one.pop("tests") == ["t"]) for one in info]

    assert await adapt(lambda completions, **all: rewards(**all))(CHANGED) == [1.0] * 3
    assert (len(QUESTION), CHANGED.row["info"]) == (1, {"tests": ["t"]})


async def test_async_members_are_awaited_and_the_first_error_is_raised() -> None:
    async def reward(completion: str) -> float:
        if completion == "5":
            raise LookupError("no five")
        return 1.0

    with pytest.raises(LookupError, match="no five"):
        await adapt(reward)(REQUEST)


async def test_a_callable_object_is_a_function() -> None:
    class Judge:
        async def __call__(self, completion: str) -> float:
            return float(completion)

    assert await adapt(Judge())(REQUEST) == [4.0, 5.0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan of type float"),
        (float("inf"), "inf of type float"),
        ("1.0", "'1.0' of type str"),
        (None, "None of type NoneType"),
        ({"reward": 1.0}, "of type dict"),
        (10**400, "of type int"),
        (1j, "of type complex"),
    ],
)
async def test_a_value_that_is_no_finite_number_is_named(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words} for member 0; expected a finite number"):
        await adapt(lambda completion: value)(REQUEST)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0, 3.0], 1.0, None, "ab"])
async def test_a_list_of_another_length_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected (a list of )?2"):
        await adapt(lambda completions: value)(REQUEST)


async def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"asks for `solution`.*prompt, answer, data_source"):
        await adapt(lambda completion, solution: 1.0)(REQUEST)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: 1.0, "none of these is a response"),
        (lambda completion, /: 1.0, "positional-only"),
        (lambda *args: 1.0, "none of these is a response"),
        ("score", "is str"),
        (ScoreRequest, "is type"),
    ],
)
def test_an_unknown_signature_is_refused_in_words(function: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        adapt(function)
