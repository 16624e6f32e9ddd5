"""Prompts come in a fixed order, and a bad one is refused with its place."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from controller.config.models import Config
from controller.data.prompts import PromptSource
from controller.data.sources import Sources
from protocol.errors import ConfigError


def config(path: Path | str = "", *, seed: int = 0, **data: object) -> Config:
    return Config.model_validate({"run": {"seed": seed}, "data": {"path": str(path), **data}})


def jsonl(folder: Path, count: int) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(f'{{"prompt":"p{i}","answer":{i}}}\n' for i in range(count)))
    return path


def answers(rows: list[bytes]) -> list[int]:
    return [json.loads(row)["answer"] for row in rows]


def test_an_unshuffled_file_is_read_in_order_and_ends_after_its_epochs(tmp_path: Path) -> None:
    source = PromptSource(config(jsonl(tmp_path, 3), shuffle=False, epochs=2))
    assert answers(source.read(4)) == [0, 1, 2, 0]
    assert not source.is_end
    assert answers(source.read(4)) == [1, 2]
    assert source.is_end
    assert source.read(1) == []


def test_every_pass_is_another_order_of_all_rows_and_the_seed_fixes_it(tmp_path: Path) -> None:
    path = jsonl(tmp_path, 50)
    rows = answers(PromptSource(config(path, seed=3)).read(100))
    assert sorted(rows[:50]) == sorted(rows[50:]) == list(range(50))
    assert rows[:50] != rows[50:]
    assert rows == answers(PromptSource(config(path, seed=3)).read(100))
    assert rows != answers(PromptSource(config(path, seed=4)).read(100))


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes('\ufeff{"prompt":"é"}\n\n  \n{"prompt":"b"}'.encode())
    rows = PromptSource(config(path, shuffle=False, epochs=1)).read(9)
    assert rows == ['{"prompt":"é"}'.encode(), b'{"prompt":"b"}']


def test_a_line_of_lists_in_lists_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": ' + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"data\.jsonl, line 1 is not JSON: (maximum rec|Stack over)"):
        PromptSource(config(path)).read(1)


def test_columns_get_the_names_that_the_run_expects(tmp_path: Path) -> None:
    rows = [{"question": "q", "prompt": "old", "id": 1}]
    source = PromptSource(config(columns={"prompt": "question"}), rows)
    assert json.loads(source.read(1)[0]) == {"prompt": "q", "id": 1}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("\xff", "line 2 is not JSON"),
        ("[1]", r"line 2 is list \[1\]|line 2 is list '\[1\]'"),
        ('{"question": "q"}', r"line 2 has columns \['question'\]; expected a `prompt`"),
        ('{"prompt": ""}', "line 2 has '' as `prompt`"),
        ('{"prompt": 7}', "line 2 has '7' as `prompt`"),
        (
            '{"prompt": [{"content": "no role"}]}',
            "expected a `prompt` that is a string, or a list of messages",
        ),
        ('{"prompt": "p", "x": NaN}', "line 2 cannot be written as JSON"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt":"good"}\n' + line.encode("latin-1") + b"\n")
    source = PromptSource(config(path, shuffle=False))
    assert len(source.read(1)) == 1
    with pytest.raises(ConfigError, match=words):
        source.read(1)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = PromptSource(config(jsonl(tmp_path, 1), columns={"prompt": "question"}))
    with pytest.raises(ConfigError, match=r"no column 'question'.*\['answer', 'prompt'\]"):
        source.read(1)


def test_chat_messages_are_a_prompt() -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert json.loads(PromptSource(config(), [{"prompt": messages}]).read(1)[0])["prompt"] == messages


@pytest.mark.parametrize(
    ("path", "words"),
    [("", "data.path is empty"), ("nowhere.jsonl", "no such file or folder"), ("nowhere:prompts", "nowhere")],
)
def test_a_source_that_is_not_there_is_refused_at_once(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PromptSource(config(path))


def test_an_empty_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no rows"):
        PromptSource(config(jsonl(tmp_path, 0)))


def test_a_list_is_repeated_and_a_generator_is_not() -> None:
    rows = [{"prompt": "a", "answer": 0}, {"prompt": "b", "answer": 1}]
    assert answers(PromptSource(config(), rows).read(5)) == [0, 1, 0, 1, 0]
    assert answers(PromptSource(config(epochs=1), rows).read(5)) == [0, 1]
    once = PromptSource(config(), iter(rows))
    assert answers(once.read(5)) == [0, 1]
    assert once.is_end


def test_rows_of_a_program_are_read_by_the_keys_of_the_one_source_that_there_is() -> None:
    sources = [{"path": "rows.jsonl", "columns": {"prompt": "question"}, "where": {"level": [2]}}]
    rows = [{"question": "a", "level": 1}, {"question": "b", "level": 2}]
    found, _ = Sources(config(sources=sources), rows).read(1, (0,))
    assert found == [b'{"level":2,"prompt":"b","source":"rows"}']


@pytest.mark.parametrize("data", [{"path": "rows.jsonl"}, {"sources": [{"path": "rows.jsonl"}]}])
def test_a_file_that_a_program_stands_in_for_is_not_blamed(monkeypatch, data) -> None:
    monkeypatch.setattr("controller.data.prompts.LOOKED_THROUGH", 5)
    data = data | {"max_chars": 1}
    with pytest.raises(ConfigError, match=r"^None of 6 rows of the iterable is left") as caught:
        Sources(config(**data), [{"prompt": "long"}]).read(1)
    assert "rows.jsonl" not in str(caught.value)


def test_an_endless_generator_is_read_only_as_far_as_asked() -> None:
    made = []

    def endless() -> Iterator[dict[str, object]]:
        while True:
            made.append(len(made))
            yield {"prompt": "p", "answer": made[-1]}

    source = PromptSource(config(), endless())
    assert answers(source.read(3)) == [0, 1, 2]
    assert len(made) == 3


def test_a_function_is_called_anew_for_each_pass_with_another_seed(tmp_path: Path) -> None:
    file = tmp_path / "my_prompts.py"
    file.write_text(
        "def prompts(*, seed):\n    return ({'prompt': 'p', 'answer': seed + i} for i in range(2))\n"
    )
    source = PromptSource(config(f"{file}:prompts", seed=10, epochs=2))
    assert answers(source.read(9)) == [10, 11, 11, 12]
    assert source.is_end


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("def prompts(*, seed):\n    return 5", "5 of type int; expected an iterable of rows"),
        ("def prompts(*, seed):\n    return 'a.jsonl'", "of type str; expected .* is named by data.path"),
        ("async def prompts(*, seed):\n    yield {}", "type async_generator; .* `async def` cannot give"),
    ],
)
def test_a_function_that_returns_no_rows_is_named(tmp_path: Path, how: str, told: str) -> None:
    file = tmp_path / "no_rows.py"
    file.write_text(how)
    with pytest.raises(
        ConfigError, match=rf"data\.path: prompts \(.*no_rows\.py, line 1\) returned .*{told}"
    ):
        PromptSource(config(f"{file}:prompts")).read(1)


def test_an_iterable_without_rows_is_an_error() -> None:
    for empty in ([], iter([])):
        with pytest.raises(ConfigError, match="`prompts` has no rows"):
            PromptSource(config(), empty).read(1)


@pytest.mark.parametrize("raised", ["KeyError('oops')", "SystemExit('oops')"])
@pytest.mark.parametrize("first", ["yield {'prompt': 'p'}", "pass"])
def test_what_the_users_code_raises_is_told_with_its_place(tmp_path: Path, first: str, raised: str) -> None:
    file = tmp_path / "broken_prompts.py"
    file.write_text(f"def prompts(*, seed):\n    {first}\n    raise {raised}\n")
    source = PromptSource(config(f"{file}:prompts"))
    kind = raised.partition("(")[0]
    with pytest.raises(ConfigError, match=rf"(?s){kind}: '?oops.*broken_prompts.py"):
        source.read(2)


def test_a_saved_dataset_without_the_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"'\.\[datasets\]'"):
        PromptSource(config(tmp_path))


def test_a_saved_dataset_is_read_by_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("datasets")
    library.load_from_disk = lambda path: [{"prompt": f"p{i}", "answer": i} for i in range(4)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert sorted(answers(PromptSource(config(tmp_path)).read(4))) == [0, 1, 2, 3]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"choose one: .*/train"):
        PromptSource(config(tmp_path))


def test_numbers_and_arrays_of_numpy_in_rows_of_a_program_are_plain_ones() -> None:
    row = {"prompt": "p", "n": np.int64(3), "x": np.float32(0.5), "a": np.arange(3), "is": np.True_}
    (read,) = PromptSource(config(epochs=1), [row]).read(1)
    assert json.loads(read) == {"prompt": "p", "n": 3, "x": 0.5, "a": [0, 1, 2], "is": True}


def test_a_column_that_no_json_can_hold_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot be written as JSON, because of 'odd': Object of type set"):
        PromptSource(config(), [{"prompt": "p", "odd": {1, 2}}]).read(1)
