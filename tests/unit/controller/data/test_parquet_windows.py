"""Parquet files whose rows are larger in memory than in the file, and the order that old runs go on with."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.data import parquet
from controller.data.parquet import Parquet
from protocol.errors import ConfigError

pa = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
from pyarrow import parquet as pq  # noqa: E402

SEED = [7, 1]


def written(path: Path, rows: list[dict[str, object]], *, group: int = 64) -> Parquet:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return Parquet([str(path)])


def numbers(table: Parquet, start: int = 0) -> list[int]:
    return [row["n"] for _, row in table.walk(start, SEED)]  # type: ignore[index]


def wide(count: int, size: int) -> list[dict[str, object]]:
    """Rows that a dictionary makes small in the file."""
    return [{"n": n, "text": f"{n % 8}" + "x" * size} for n in range(count)]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (65_536, [377, 105, 397, 175, 269, 159, 148, 410, 244, 367, 452, 146, 461, 376, 149, 13]),
        (100, [210, 386, 390, 444, 211, 216, 442, 389, 472, 338, 323, 364, 468, 361, 359, 484]),
    ],
)
@pytest.mark.parametrize("held", [64 << 20, 40_000, 1])
def test_a_pass_has_the_order_of_the_releases_before_whatever_is_held(
    tmp_path, monkeypatch, window, expected, held
):
    monkeypatch.setattr("controller.data.parquet.WINDOW_ROWS", window)
    monkeypatch.setattr("controller.data.parquet.LEAST_WINDOW_ROWS", min(window, 1024))
    monkeypatch.setattr("controller.data.parquet.HELD_BYTES", held)
    table = written(tmp_path / "rows.parquet", wide(500, 1000))
    found = numbers(table)
    assert found[:8] + found[-8:] == expected
    assert sorted(found) == list(range(500))
    for start in (1, 99, 100, 101, 350, 499, 500):
        assert numbers(table, start) == found[start:]


def test_memory_holds_a_part_of_a_window_that_is_larger_than_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.parquet.HELD_BYTES", 4 << 20, raising=False)
    table = written(tmp_path / "rows.parquet", wide(3000, 20_000), group=1000)
    assert (tmp_path / "rows.parquet").stat().st_size < 1 << 20
    before, most, found = pa.total_allocated_bytes(), 0, 0
    for _ in table.walk(0, SEED):
        most, found = max(most, pa.total_allocated_bytes() - before), found + 1
        if found == 500:
            break
    assert most < 16 << 20


def test_rows_of_a_megabyte_are_decoded_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.parquet.HELD_BYTES", 4 << 20, raising=False)
    table = written(tmp_path / "rows.parquet", wide(100, 1 << 20), group=500)
    before, most = pa.total_allocated_bytes(), 0
    for _, _ in zip(range(100), table.walk(0, None), strict=False):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 48 << 20


def all_kinds(count: int) -> Iterator[dict[str, object]]:
    for n in range(count):
        yield {
            "n": n, "chat": [{"role": "user", "content": "a" * (n % 7)}], "day": datetime(2026, 1, 1 + n % 9),
            "x": Decimal(n), "deep": {"a": [n, None], "b": None}, "flag": bool(n % 2), "raw": b"x" * n,
            "nothing": None, "real": n / 2,
        }  # fmt: skip


def test_values_of_every_kind_are_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.parquet.HELD_BYTES", 2000)
    rows = list(all_kinds(200))
    table = pa.Table.from_pylist(rows)
    kinds = pa.array([f"kind {n % 3}" for n in range(200)]).dictionary_encode()
    pq.write_table(table.append_column("kind", kinds), tmp_path / "rows.parquet", row_group_size=64)
    found = {row["n"]: (place, row) for place, row in Parquet([str(tmp_path / "rows.parquet")]).walk(0, SEED)}
    for n, row in enumerate(rows):
        assert found[n] == (f"{tmp_path}/rows.parquet, row {n}", {**row, "kind": f"kind {n % 3}"})


@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("kind", ["text", "time"])
def test_a_value_that_python_cannot_hold_is_named_with_its_row_and_column(tmp_path, seed, kind):
    ends = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3)))
    odd = {
        "text": pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"a\xff\xff")]),
        "time": pa.array([1, 1 << 62], pa.timestamp("us")),
    }[kind]
    pq.write_table(pa.table({"n": [0, 1], "odd": odd}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match=r"rows.parquet, row 1 has a value in 'odd' that cannot be read"):
        list(Parquet([str(tmp_path / "rows.parquet")]).walk(0, seed))


@pytest.fixture
def converted(monkeypatch):
    """`sizes` of the batches that were converted; the first of `failures` is raised in place of each."""
    sizes: list[int] = []
    plain, failures = parquet._plain, []

    class Counted:
        def __init__(self, rows):
            self.rows = rows

        def __getattr__(self, name):
            return getattr(self.rows, name)

        def slice(self, *place):
            return Counted(self.rows.slice(*place))

        def to_pylist(self):
            sizes.append(self.rows.num_rows)
            if failures:
                raise failures[0]
            return self.rows.to_pylist()

    monkeypatch.setattr(parquet, "_plain", lambda decoded: Counted(plain(decoded)))
    return SimpleNamespace(sizes=sizes, failures=failures)


def test_rows_in_the_order_of_the_file_are_converted_together(tmp_path, converted):
    table = written(tmp_path / "rows.parquet", [{"n": n} for n in range(500)], group=500)
    found = [*table.walk(7, None)]
    assert found == [(f"{tmp_path}/rows.parquet, row {n}", {"n": n}) for n in range(7, 500)]
    assert sum(converted.sizes) == 493
    assert len(converted.sizes) < 5


@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("error", [MemoryError(), ValueError("of no column")])
def test_a_failure_that_is_of_no_column_is_raised_as_it_is(tmp_path, converted, seed, error):
    converted.failures.append(error)
    table = written(tmp_path / "rows.parquet", [{"n": 0}])
    with pytest.raises(type(error)) as caught:
        next(table.walk(0, seed))
    assert caught.value is error
