"""The cells of docs/embedding.md, run as a notebook runs them: in a loop that goes on, with one namespace."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_model import TASK
from test_whole_runs import config, left_behind

from protocol.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


class Rows(list[Any]):
    """In place of the page's list: sets an event with the first row."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def append(self, row: Any) -> None:
        super().append(row)
        self.came.set()


async def run_cell(code: str, names: dict[str, Any]) -> None:
    """As IPython does with a cell that awaits at its top level."""
    done = eval(compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(done):
        await done


async def test_the_cells_of_the_page_run_beside_the_run_and_end_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = config(
        tmp_path, run={"steps": 500, "name": "first"}, trainer={"checkpoint_steps": 0}
    ).model_dump(mode="json")
    (tmp_path / "run").rename(tmp_path / "first")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "rewards.py").symlink_to(TASK)
    page = PAGE.read_text().partition("## In a notebook")[2]
    begin, look = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {"__name__": "__main__"}
    await run_cell(begin, names)
    rows = names["rows"] = Rows()
    async with asyncio.timeout(300):
        first = asyncio.create_task(rows.came.wait())
        await asyncio.wait([first, names["task"]], return_when=asyncio.FIRST_COMPLETED)
        assert first.done()
        with pytest.raises(ConfigError, match="no live key"):
            await names["controller"].control("set", "trainer.lr=1")
        await run_cell(look, names)
    said = capsys.readouterr().out
    assert re.search(r"^Version \d+.* saved", said, re.M)
    assert names["controller"].summary["reason"] == "I have seen enough."
    assert 1 <= len(rows) < 500
    with pytest.raises(RuntimeError, match="The run is over, and nobody obeys"):
        await names["controller"].control("pause")
    assert not left_behind()
