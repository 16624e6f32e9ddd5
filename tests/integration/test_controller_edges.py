"""The controller as an object of a program: what it refuses, how it fails, and what it leaves behind."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from local_workers import below

from controller import Controller
from controller.config.models import Config
from controller.controller import _own_import_paths
from controller.core.core import Core
from controller.core.events import Event
from controller.given.importable import import_path
from protocol.errors import ConfigError, RunError

PROMPTS = [{"prompt": "p"}]


def config(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": "run", "steps": 1},
            "rollout": {"instances": 0},
            "reward": {"workers": 0},
        }
    )


def module_level(completion: str) -> float:
    """A reward as it should be."""
    return float(len(completion))


def test_what_a_package_put_on_the_path_is_not_handed_to_workers(monkeypatch, tmp_path):
    mine, vendored = tmp_path / "mine", tmp_path / "site-packages" / "setuptools" / "_vendor"
    for folder in (mine, vendored):
        folder.mkdir(parents=True)
        monkeypatch.syspath_prepend(folder)
    paths = _own_import_paths()
    assert str(mine) in paths
    assert str(vendored) not in paths


async def train(config: Config, prompts: Iterable[dict[str, str]]) -> None:
    """A run that makes no step."""
    async with Controller(config, prompts=prompts) as controller:
        async for _ in controller.train():
            raise AssertionError


def test_a_module_level_reward_becomes_an_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_path(module_level) == (f"{__name__}:module_level", str(Path(__file__).parent))
    monkeypatch.setattr(sys.modules[__name__], "__name__", "__main__")
    assert import_path(module_level) == (
        f"{Path(__file__).resolve()}:module_level",
        str(Path(__file__).parent),
    )


def test_a_reward_that_workers_could_not_import_is_refused_at_once(tmp_path: Path) -> None:
    def closure(completion: str) -> float:
        return 0.0

    for reward in (lambda completion: 0.0, closure, "text".count, print):
        with pytest.raises(ConfigError, match="top level of a module or script"):
            Controller(config(tmp_path), reward=reward)
    assert not list(tmp_path.iterdir())


async def test_a_second_controller_in_the_same_place_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with Controller(config(tmp_path), prompts=PROMPTS) as first:
        with pytest.raises(ConfigError, match="in use by the controller with pid"):
            async with Controller(config(tmp_path), prompts=PROMPTS):
                raise AssertionError
        assert (first.run_dir / "address").exists()
    assert not (first.run_dir / "address").exists()


async def test_a_configuration_that_cannot_work_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path is empty"):
        async with Controller(config(tmp_path)):
            raise AssertionError
    async with Controller(config(tmp_path), prompts=PROMPTS):
        pass  # the lock was let go


async def test_a_prompt_source_that_breaks_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    def prompts() -> Iterator[dict[str, str]]:
        yield {"prompt": "p"}
        raise OSError("the disk with the prompts is gone")

    with pytest.raises(ConfigError, match="the disk with the prompts is gone"):
        await train(config(tmp_path), prompts())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not summary["is_success"]
    assert "the disk with the prompts is gone" in summary["reason"]
    assert not below()


async def test_a_bug_in_the_core_ends_the_run_and_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(core: Core, now: float, event: Event) -> list:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Core, "step", broken)
    with pytest.raises(RunError, match=r"ZeroDivisionError: a bug\. This is a bug: please report"):
        await train(config(tmp_path), PROMPTS)
    assert "in broken" in (tmp_path / "run" / "logs" / "controller.log").read_text()
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["is_success"]


async def test_leaving_by_an_exception_keeps_the_exception_and_the_journal(tmp_path: Path) -> None:
    controller = Controller(config(tmp_path), prompts=PROMPTS)

    async def leave() -> None:
        async with controller:
            assert controller.snapshot().train_version == 0
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        await leave()
    assert "of the user" in controller.summary["reason"]
    with sqlite3.connect(tmp_path / "run" / "run.db") as database:
        facts = dict(database.execute("SELECT name, value FROM facts"))
    database.close()
    assert Config.model_validate_json(facts["config"]) == controller.config


async def test_leaving_by_a_cancellation_says_who_stopped_the_run_and_how_it_goes_on(tmp_path: Path) -> None:
    controller = Controller(config(tmp_path), prompts=PROMPTS)

    async def leave(words: str | None) -> None:
        async with controller:
            task = asyncio.current_task()
            assert task is not None
            task.cancel(words)
            await asyncio.Event().wait()

    for words, reason in (("I did.", "I did."), (None, "The program was cancelled.")):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(leave(words))
        assert controller.summary["reason"] == f"{reason} Start it again, and the run goes on."
        controller = Controller(config(tmp_path), prompts=PROMPTS)
