"""Parquet, CSV and saved data sets give the rows of a JSONL file, and are entered at any row."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from controller.check.problems import check
from controller.config.data import RowSettings
from controller.config.models import Config
from controller.data.formats import open_table
from controller.data.prompts import PromptSource
from controller.data.sources import Sources
from controller.data.text_files import STRIDE, JsonLines, SeparatedValues
from protocol.errors import ConfigError

COUNT = 500


def config(path: Path | str, **data: object) -> Config:
    return Config.model_validate({"data": {"path": str(path), **data}})


def numbers(source: PromptSource, count: int) -> list[int]:
    return [int(json.loads(row)["n"]) for row in source.read(count)]


def parquet(path: Path, count: int = COUNT, *, first: int = 0, group: int = 64) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    from pyarrow import parquet as pq

    rows = range(first, first + count)
    table = pa.table(
        {"prompt": [f"p{n}" for n in rows], "n": list(rows), "nested": [{"a": [n]} for n in rows]}
    )
    pq.write_table(table, path, row_group_size=group)
    return path


def jsonl(path: Path, count: int = COUNT) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "n": n}) + "\n" for n in range(count)))
    return path


def separated(path: Path, count: int = COUNT) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        writer.writerow(["prompt", "n"])
        writer.writerows([f'p{n}, with "quotes"\nand lines', n] for n in range(count))
    return path


MAKERS = {"rows.parquet": parquet, "rows.jsonl": jsonl, "rows.csv": separated, "rows.TSV": separated}


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_gives_every_row_once_a_pass_in_an_order_of_the_seed(tmp_path, name):
    path = MAKERS[name](tmp_path / name)
    assert numbers(PromptSource(config(path, shuffle=False)), 2 * COUNT) == [*range(COUNT)] * 2
    source = PromptSource(config(path))
    first, second = numbers(source, COUNT), numbers(source, COUNT)
    assert sorted(first) == sorted(second) == [*range(COUNT)]
    assert first != second
    assert first != [*range(COUNT)]
    assert numbers(PromptSource(config(path)), COUNT) == first


@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_a_source_goes_on_from_any_cursor(tmp_path, name, is_shuffled, monkeypatch):
    monkeypatch.setattr("controller.data.parquet.WINDOW_ROWS", 100)
    monkeypatch.setattr("controller.data.parquet.LEAST_WINDOW_ROWS", 30)
    monkeypatch.setattr("controller.data.parquet.BATCH_ROWS", 30)
    settings = config(MAKERS[name](tmp_path / name), shuffle=is_shuffled)
    whole = numbers(PromptSource(settings), 2 * COUNT + 50)
    source, read = PromptSource(settings), 0
    for count in (1, 63, 36, 200, 199, 1, 77, 423):
        numbers(source, count)
        read += count
        resumed = PromptSource(settings)
        resumed.seek(source.cursor)
        assert numbers(resumed, 40) == whole[read : read + 40]


def test_a_shuffled_parquet_file_mixes_its_row_groups_within_a_window(tmp_path):
    rows = numbers(PromptSource(config(parquet(tmp_path / "rows.parquet"))), 64)
    assert len({n // 64 for n in rows}) > 4


def test_a_compressed_file_of_a_folder_is_not_left_out_unsaid(tmp_path):
    jsonl(tmp_path / "a.jsonl")
    (tmp_path / "notes.gz").write_bytes(b"")
    assert len(numbers(PromptSource(config(tmp_path, epochs=1)), 999)) == COUNT
    (tmp_path / "b.JSONL.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"the compressed file b\.JSONL\.gz, which would not be read"):
        PromptSource(config(tmp_path))
    assert len(numbers(PromptSource(config(tmp_path / "*.jsonl", epochs=1)), 999)) == COUNT


def test_several_files_are_one_source(tmp_path):
    for number in range(3):
        parquet(tmp_path / f"part-{number}.parquet", 50, first=50 * number)
        jsonl(tmp_path / f"part-{number}.jsonl", 50)
    for path in (tmp_path / "part-*.parquet", tmp_path / "part-*.jsonl"):
        found = numbers(PromptSource(config(path, epochs=1)), 999)
        assert len(found) == 150
        assert set(found) == set(range(150 if path.suffix == ".parquet" else 50))
    with pytest.raises(ConfigError, match="files of several formats"):
        PromptSource(config(tmp_path))


def test_nested_columns_and_dates_of_parquet_come_out_as_json(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from datetime import datetime
    from decimal import Decimal

    from pyarrow import parquet as pq

    messages = [{"role": "user", "content": "1+1"}]
    row = {"prompt": messages, "day": datetime(2026, 1, 2), "x": Decimal("1.5"), "reward": {"truth": "2"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    source = PromptSource(config(tmp_path / "rows.parquet", columns={"answer": "reward.truth"}))
    found = json.loads(source.read(1)[0])
    assert found["prompt"] == messages
    assert (found["day"], found["x"], found["answer"]) == ("2026-01-02T00:00:00", 1.5, "2")


@pytest.mark.parametrize("suffix", ["CSV", "Jsonl", "PARQUET"])
def test_a_folder_has_its_files_whatever_the_case_of_their_names(tmp_path, suffix):
    MAKERS[f"rows.{suffix.lower()}"](tmp_path / f"ROWS.{suffix}")
    assert numbers(PromptSource(config(tmp_path, shuffle=False)), COUNT) == [*range(COUNT)]


def test_a_column_of_bytes_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    from pyarrow import parquet as pq

    pq.write_table(pa.table({"prompt": ["p"], "picture": [b"png"], "n": [1]}), tmp_path / "rows.parquet")
    words = (
        "row 0 cannot be written as JSON, because of 'picture': Object of type bytes .* Leave such a column"
    )
    with pytest.raises(ConfigError, match=words):
        PromptSource(config(tmp_path / "rows.parquet")).read(1)


def test_a_parquet_file_that_is_cut_short_is_named(tmp_path):
    path = parquet(tmp_path / "rows.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(
        ConfigError, match=r"rows\.parquet cannot be read as Parquet: .* write or copy it again"
    ):
        PromptSource(config(path))


def test_a_record_of_another_width_is_named_with_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('prompt,n\n"two\nlines",1\n\np,2,3\n')
    source = PromptSource(config(path, shuffle=False))
    assert json.loads(source.read(1)[0]) == {"prompt": "two\nlines", "n": "1"}
    with pytest.raises(ConfigError, match="has 3 values; expected 2, one per column"):
        source.read(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('prompt,n\nfirst,1\n"Yes,2\nthird,3\n"quoted" end,4\nlast,5\n', "lines 3 to 5 cannot be read"),
        ('prompt,n\nfirst,1\n\n"Yes,2\nthird,3\n', "lines 4 to 5 cannot be read: unexpected end of data"),
        ('prompt,n\n"a"b,1\n', "line 2 cannot be read"),
        ('"prompt,n\na,1\n', "lines 1 to 2 cannot be read"),
    ],
)
def test_a_quote_that_would_merge_rows_is_refused_with_its_lines(tmp_path, text, words):
    for name, separator in (("rows.csv", ","), ("rows.tsv", "\t")):
        (tmp_path / name).write_text(text.replace(",", separator))
        with pytest.raises(ConfigError, match=rf"{name}, {words}.* is written twice"):
            PromptSource(config(tmp_path / name))


def test_quotes_inside_of_values_are_read(tmp_path):
    (tmp_path / "rows.csv").write_text('prompt,n\na "b" c,1\n"say ""yes"", then",2\n')
    source = PromptSource(config(tmp_path / "rows.csv", shuffle=False, epochs=1))
    assert [json.loads(row)["prompt"] for row in source.read(9)] == ['a "b" c', 'say "yes", then']


@pytest.mark.parametrize("head", ["prompt,prompt", "prompt,"])
def test_a_first_line_that_names_no_columns_is_refused(tmp_path, head):
    (tmp_path / "rows.csv").write_text(f"{head}\n1,2\n")
    with pytest.raises(ConfigError, match="expected names, each once"):
        PromptSource(config(tmp_path / "rows.csv"))


def test_the_index_of_lines_is_sparse_and_right_across_blocks_and_blank_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.text_files.CHUNK_BYTES", 97)
    path = tmp_path / "rows.jsonl"
    lines = ["  \n" if n % 7 == 3 else "\n" if n % 5 == 1 else f'{{"n":{n}}}\n' for n in range(1000)]
    path.write_text("".join(lines)[:-1])
    rows = [(f"{path}, line {n + 1}", {"n": n}) for n, line in enumerate(lines) if not line.isspace()]
    table = JsonLines(str(path))
    assert len(table) == len(rows)
    assert [table.row(n) for n in (0, 500, 64, 63, 65, len(rows) - 1, 0)] == [
        rows[n] for n in (0, 500, 64, 63, 65, len(rows) - 1, 0)
    ]
    assert list(table.walk(0, None)) == rows
    assert len(table._places) == -(-len(rows) // STRIDE)
    assert len(JsonLines(str(path), 10)) == 10


def test_a_line_of_many_blocks_is_looked_through_a_few_times_only(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.text_files.CHUNK_BYTES", 160)
    looked_at: list[int] = []
    looked = np.frombuffer
    monkeypatch.setattr(
        np, "frombuffer", lambda data, kind: (looked_at.append(len(data)), looked(data, kind))[1]
    )
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n":1}\n' + json.dumps({"n": 2, "text": "x" * 100_000}) + '\n{"n":3}\n')
    for most in (None, 3):
        looked_at.clear()
        table = JsonLines(str(path), most)
        assert len(table) == 3
        assert sum(looked_at) < 8 * path.stat().st_size
    assert table.row(2) == (f"{path}, line 3", {"n": 3})


def test_a_text_file_that_is_cut_short_while_it_is_read_is_named(tmp_path):
    for name, kind in (("rows.jsonl", JsonLines), ("rows.csv", SeparatedValues)):
        path = MAKERS[name](tmp_path / name)
        table = kind(str(path))
        path.write_text("")
        with pytest.raises(ConfigError, match=r"ends before its row 400, and had 500 rows"):
            table.row(400)


def test_a_saved_data_set_is_read_by_its_split(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[datasets]'")
    parts = {name: datasets.Dataset.from_list([{"prompt": name, "n": 1}]) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    source = PromptSource(config(tmp_path / "saved", split="test"))
    assert json.loads(source.read(1)[0])["prompt"] == "test"
    with pytest.raises(ConfigError, match="none named 'dev': it has train, test"):
        PromptSource(config(tmp_path / "saved", split="dev"))
    with pytest.raises(ConfigError, match="without splits; leave split out"):
        PromptSource(config(tmp_path / "saved" / "train", split="train"))
    with pytest.raises(ConfigError, match="is a file, which has no splits"):
        PromptSource(config(jsonl(tmp_path / "rows.jsonl"), split="train"))


def test_a_name_of_the_hub_is_refused_in_words_where_it_cannot_be_had(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[datasets]'")

    def refuse(name: str, subset: str | None, *, split: str) -> object:
        raise ConnectionError(f"Couldn't reach {name} ({subset}, {split})")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        ConfigError, match=r"(?s)no such file or folder.*did not give.*save_to_disk\(FOLDER\)"
    ):
        PromptSource(config("somebody/something", subset="main"))


@pytest.mark.parametrize("pattern", ["", "/*", "/*.jsonl"])
def test_a_folder_among_files_is_called_one_by_a_run_and_by_check(tmp_path, pattern):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n')
    (tmp_path / "b.jsonl").mkdir()
    path = f"{tmp_path}{pattern}"
    with pytest.raises(ConfigError, match=r"b\.jsonl: it is a folder; expected files only"):
        open_table(RowSettings(path=path))
    config = Config.model_validate({"data": {"path": path}})
    assert any("b.jsonl: it is a folder" in one.text for one in check(config) if one.field == "data.path")


def test_a_row_of_a_csv_file_is_named_by_its_own_line_behind_blank_ones(tmp_path):
    (tmp_path / "rows.csv").write_text('prompt,answer\n1,2\n\n"3\n",4\n\n\n5\n')
    table = SeparatedValues(str(tmp_path / "rows.csv"))
    assert [table.row(index)[0].rpartition(", ")[2] for index in (0, 1)] == ["line 2", "line 4"]
    with pytest.raises(ConfigError, match=r"rows\.csv, line 8 has 1 values"):
        table.row(2)


def test_a_pipe_is_refused_in_words_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match=r"rows\.jsonl' cannot be read: it is a pipe or a device"):
        Sources(Config.model_validate({"data": {"path": str(tmp_path / "rows.jsonl")}}), None)
    with pytest.raises(ConfigError, match=r"rows\.jsonl' cannot be read: it is a pipe or a device"):
        PromptSource(config(tmp_path / "rows.jsonl"))


def test_a_link_to_nothing_in_a_folder_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "b.jsonl").symlink_to("gone.jsonl")
    with pytest.raises(ConfigError, match=r"cannot be read: .*/b\.jsonl: No such file or directory"):
        PromptSource(config(tmp_path))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_keys_that_a_call_or_a_tool_lacks_are_no_nulls_of_it(tmp_path, name):
    """A column of Parquet has the keys of all its rows in each: a policy would learn them as null."""
    pa = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    from pyarrow import parquet as pq

    def row(**arguments: object) -> dict[str, object]:
        calls = [{"function": {"name": "look", "arguments": arguments}}]
        schema = {"name": "look", "parameters": {key: {"type": "string"} for key in arguments}}
        talk = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": calls},
        ]
        return {"messages": talk, "tools": [schema], "answer": arguments}

    rows, path = [row(city="Rome"), row(day="Monday"), row(city="Bonn", day=None)], tmp_path / name
    if name == "rows.jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    supervised = Config.model_validate(
        {"data": {"path": str(path), "shuffle": False}, "trainer": {"algorithm": "sft"}}
    )
    found = [json.loads(row) for row in PromptSource(supervised).read(3)]
    told = [row["response"]["tool_calls"][0]["function"]["arguments"] for row in found]
    genuine = {} if name == "rows.parquet" else {"day": None}  # which Parquet cannot tell from a missing key
    assert told == [{"city": "Rome"}, {"day": "Monday"}, {"city": "Bonn", **genuine}]
    assert [[*row["tools"][0]["parameters"]] for row in found] == [["city"], ["day"], ["city", "day"]]
    if name == "rows.parquet":
        assert found[0]["answer"] == {"city": "Rome", "day": None}  # columns of the reward stay as they are
