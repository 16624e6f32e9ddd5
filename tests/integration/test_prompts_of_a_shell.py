"""A controller without workers reads what its core asks of two sources, and goes on at the very row."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.data.sources import Sources
from controller.host.health.loop_lag import Lag, LoopLag
from controller.host.shell import Shell
from protocol.errors import ConfigError

ROWS = 64  # that the core reads ahead


def config(folder: Path) -> Config:
    (folder / "a.csv").write_text("q\n" + "".join(f"a{n}\n" for n in range(40)))
    (folder / "b.jsonl").write_text("".join(f'{{"prompt": "b{n}"}}\n' for n in range(90)))
    sources = [
        {"path": str(folder / "a.csv"), "prompt": "{q}?"},
        {"path": str(folder / "b.jsonl"), "weight": 3},
    ]
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": "run"},
            "data": {"sources": sources},
            "rollout": {"instances": 0},
            "reward": {"workers": 0},
            "trainer": {"local": False},
            "model": {"path": str(folder)},
        }
    )


def ignore(*_: object) -> None:
    """Not of interest here."""


class Reading(Shell):
    """Tells when prompts were read."""

    def __init__(self, settings: Config, warn: Callable[[str], None] = ignore) -> None:
        super().__init__(settings, on_step=ignore, on_evaluation=ignore, on_progress=ignore, on_warning=warn)
        self.has_read = asyncio.Event()

    def _turn(self) -> None:
        super()._turn()
        if self.core.scoring.read_until:
            self.has_read.set()


async def read_ahead(settings: Config, warn: Callable[[str], None] = ignore) -> None:
    """A run that ends when its first prompts are in the journal."""
    shell = Reading(settings, warn)
    await shell.open()
    running = asyncio.create_task(shell.run())
    await asyncio.wait([running, asyncio.create_task(shell.has_read.wait())], return_when="FIRST_COMPLETED")
    assert shell.failure is None
    shell.abandon("enough")
    await running


async def test_a_shell_says_of_itself_how_late_its_loop_comes_and_what_room_its_disk_has(
    tmp_path, monkeypatch
):
    for limit in ("FULL_BYTES", "ROOMY_BYTES"):
        monkeypatch.setattr(f"controller.host.health.own_health.{limit}", 1 << 60)
    monkeypatch.setattr(LoopLag, "figures", lambda _: Lag(0.01, 0.02, 0.03, 0.04, 60.0))
    warned = []
    shell = Reading(config(tmp_path))
    shell._on_warning = warned.append
    await shell.open()
    running = asyncio.create_task(shell.run())
    await asyncio.wait([running, asyncio.create_task(shell.has_read.wait())], return_when="FIRST_COMPLETED")
    shell.abandon("enough")
    await running
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["controller"]["disk_free_mb"] > 0
    assert status["controller"]["loop_lag_max_s"] == 0.04
    assert [alarm["name"] for alarm in status["alarms"]] == ["disk"]
    assert sum(text.startswith("ALARM, disk (controller): ") for text in warned) == 1


async def test_a_shell_goes_on_with_both_sources_at_the_next_row_of_each(tmp_path):
    settings = config(tmp_path)
    await read_ahead(settings)
    shell = Reading(settings)
    await shell.open()
    try:
        mixture = shell.core.state.mixture
        first, second = mixture.read
        assert first + second == shell.core.scoring.read_until == ROWS
        assert abs(second - 48) <= 2
        facts = shell._store.facts()
        assert [given for given, *_ in json.loads(facts["cursors"])[:2]] == [first, second]
        wanted = (0, 1, 1, 1)
        rows, _ = shell._prompts._sources.read(4, wanted)
        straight = Sources(settings)
        straight.read(ROWS, (0,) * first + (1,) * second)
        assert rows == straight.read(4, wanted)[0]
        assert [json.loads(row)["source"] for row in rows] == ["a", "b", "b", "b"]
    finally:
        shell.abandon("enough")
        await shell.run()


async def test_a_shell_refuses_a_source_that_was_shortened(tmp_path):
    settings = config(tmp_path)
    await read_ahead(settings)
    (tmp_path / "b.jsonl").write_text('{"prompt": "b0"}\n')
    with pytest.raises(ConfigError, match=r"data\.sources\.1 \(b\).* was shortened: .* bytes then, 17 now"):
        await Reading(settings).open()


def with_own_files(folder: Path) -> Config:
    """A reward of two functions, and a loss."""
    for name in ("mine.py", "loss.py"):
        (folder / name).write_text("def score(response): return 1.0\n")
    tree = config(folder).model_dump()
    entries = [{"function": f"{folder / 'mine.py'}:{name}", "name": name} for name in ("score", "length")]
    tree["reward"] |= {"rewards": entries}
    tree["trainer"] |= {"loss": f"{folder / 'loss.py'}:loss"}
    return Config.model_validate(tree)


async def test_a_shell_that_goes_on_names_each_file_of_the_users_that_has_changed(tmp_path):
    settings, warned = with_own_files(tmp_path), []

    async def go_on() -> list[str]:
        warned.clear()
        await read_ahead(settings, warned.append)
        return [text for text in warned if "other content" in text]

    assert await go_on() == [], "it has only begun"
    assert await go_on() == [], "nothing has changed"
    (tmp_path / "mine.py").write_text("def score(response): return 2.0\n")
    (told,) = await go_on()
    assert told.startswith(
        f"{tmp_path}/mine.py (reward.rewards.function) has other content than the run used"
    )
    assert "rewards from before and after may not be comparable" in told
    assert "put the file back" in told
    assert "\n" not in told
    assert await go_on() == [], "it was said, and the run uses the new one now"
    (tmp_path / "loss.py").write_text("")
    (told,) = await go_on()
    assert told.startswith(f"{tmp_path}/loss.py (trainer.loss) has other content than the run used before.")


async def test_a_shell_goes_on_with_a_run_of_a_release_that_did_not_know_its_files(tmp_path):
    settings, warned = with_own_files(tmp_path), []
    await read_ahead(settings)
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        db.execute("DELETE FROM facts WHERE name = 'files'")
    db.close()
    (tmp_path / "mine.py").write_text("")
    await read_ahead(settings, warned.append)
    assert not [text for text in warned if "other content" in text]
    (tmp_path / "mine.py").write_text("# again\n")
    await read_ahead(settings, warned.append)
    assert len([text for text in warned if "other content" in text]) == 1, "it knows them from then on"


async def test_weights_that_were_replaced_under_an_unfinished_run_are_refused_by_name(tmp_path):
    settings, weights = config(tmp_path), tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    for _ in range(2):  # it begins, and goes on
        await read_ahead(settings)
    weights.write_bytes(b"two")
    with pytest.raises(ConfigError, match=r"that it began from: .*model\.safetensors"):
        await Reading(settings).open()
