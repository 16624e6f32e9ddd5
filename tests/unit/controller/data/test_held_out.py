"""Held-out sets: read whole, in order, and refused by name."""

import json
import tracemalloc

import pytest

from controller.check.problems import check
from controller.config.load import load_config
from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.data.held_out import read_held_out
from protocol.errors import ConfigError


def settings(data, **evaluation) -> Config:
    return Config.model_validate({"evaluation": {"every_steps": 5, "data": data, **evaluation}})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.jsonl"
    rows = [{"question": f"q{n}", "kind": "ab"[n % 2]} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_come_in_order_with_their_sources(file):
    columns = {"prompt": "question"}
    found = read_held_out(
        settings(
            {
                "whole": {"path": file, "columns": columns},
                "split": {"path": file, "columns": columns, "source_column": "kind", "max_prompts": 3},
            }
        )
    )
    assert found.sources == ("whole",) * 5 + ("a", "b", "a")
    assert [json.loads(row)["prompt"] for row in found.rows] == [
        "q0",
        "q1",
        "q2",
        "q3",
        "q4",
        "q0",
        "q1",
        "q2",
    ]


def test_the_digest_tells_other_rows_and_other_sources(file):
    columns = {"prompt": "question"}
    sets = [{"a": {"path": file, "columns": columns}}, {"b": {"path": file, "columns": columns}}]
    sets.append({"a": {"path": file, "columns": columns, "max_prompts": 4}})
    digests = [read_held_out(settings(data)).digest for data in (*sets, sets[0])]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


def test_nothing_is_read_while_evaluation_is_off(file):
    assert read_held_out(settings({"a": {"path": file}}, every_steps=0)).rows == ()


def test_a_set_that_cannot_be_used_is_named(file):
    with pytest.raises(ConfigError, match=r"evaluation\.data\.math, .*no such file or folder"):
        read_held_out(settings({"math": {"path": "nowhere.jsonl"}}))
    with pytest.raises(ConfigError, match=r"(?s)evaluation\.data\.math, .*`prompt`"):
        read_held_out(settings({"math": {"path": file}}))
    data = {"path": file, "columns": {"prompt": "question"}, "source_column": "subject"}
    with pytest.raises(ConfigError, match=r"Row 0 of evaluation\.data\.math has None as its 'subject'"):
        read_held_out(settings({"math": data}))


@pytest.mark.parametrize(
    ("data", "evaluation", "field"),
    [
        ({}, {}, "evaluation.data"),
        ({"a": {"path": "t.jsonl"}}, {"samples": 4, "sampling": {"temperature": 0.0}}, "evaluation.samples"),
        ({"a": {"path": "t.py:prompts"}}, {}, "evaluation.data.a.max_prompts"),
    ],
)
def test_impossible_evaluations_are_refused(data, evaluation, field):
    problems = cross_field_problems(settings(data, **evaluation))
    assert [fields[0] for fields, _ in problems] == [field]


@pytest.mark.parametrize(
    "path", ["reasoning_gym:chain_sum?size=20", "reasoning_gym:chain_sum", "at_12:30.jsonl"]
)
def test_a_set_that_ends_needs_no_number_of_prompts(path):
    assert cross_field_problems(settings({"a": {"path": path}})) == []


def test_check_says_what_evaluation_costs_and_refuses_a_missing_file(tmp_path, file):
    (tmp_path / "run.yaml").write_text(
        "run: {steps: 12}\ntrainer: {batch_groups: 8}\nrollout: {group_size: 4}\n"
        "evaluation:\n  every_steps: 5\n  samples: 4\n  data:\n"
        "    here: {path: test.jsonl, columns: {prompt: question}}\n    gone: {path: gone.jsonl}\n"
    )
    config = load_config(tmp_path / "run.yaml")
    assert config.evaluation.data["here"].path == file  # beside the configuration
    found = {finding.field: finding for finding in check(config)}
    assert found["evaluation.data.gone.path"].level == "error"
    text = found["evaluation.every_steps"].text
    assert "at least 5 held-out prompts x 4 samples = 20 responses each time, 4 times" in text
    assert "20.8% of the 384" in text


@pytest.mark.parametrize("format", ["csv", "parquet", "jsonl"])
def test_check_counts_held_out_rows_and_not_lines(tmp_path, format):
    rows = [{"prompt": f"two\nlines {number}", "answer": "x"} for number in range(3)]
    file = tmp_path / f"test.{format}"
    if format == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), file)
    elif format == "csv":
        file.write_text("prompt,answer\n" + "".join(f'"{row["prompt"]}",x\n' for row in rows))
    else:
        file.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    found = {one.field: one.text for one in check(settings({"test": {"path": str(file)}}))}
    assert found["evaluation.every_steps"].startswith("3 held-out prompts x 1 samples = 3 responses")


def test_check_takes_no_memory_for_the_evaluations_of_an_endless_run(file):
    config = settings({"a": {"path": file, "columns": {"prompt": "question"}}}, every_steps=3)
    endless = config.model_copy(update={"run": config.run.model_copy(update={"steps": 1_000_000})})
    tracemalloc.start()
    found = {finding.field: finding.text for finding in check(endless)}
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "333335 times" in found["evaluation.every_steps"]  # of them the first and the last version
    assert most_bytes < 10_000_000


def test_held_out_rows_of_a_supervised_run_need_no_response(tmp_path):
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    rows = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "1+1?", "response": "2"}, {"messages": talk}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = {"every_steps": 1, "data": {"test": {"path": str(tmp_path / "rows.jsonl")}}}
    config = Config.model_validate({"trainer": {"algorithm": "sft"}, "evaluation": evaluation})
    found = [json.loads(row) for row in read_held_out(config).rows]
    assert found == [*rows[:2], {"prompt": talk[:1], "response": "2"}]
