"""Which build of the core is used."""

import importlib
import shutil
from pathlib import Path

import pytest

from controller.compiled import finder

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def sources(tmp_path):
    """A copy of what a build is known by."""
    for folder in finder.READ:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def no_cache():
    finder.found.cache_clear()
    yield
    finder.found.cache_clear()


def test_a_changed_line_a_new_module_and_a_renamed_one_are_other_sources(sources):
    keys = [finder.key_of(sources)]
    (sources / "strategies/new.py").write_text("")
    keys.append(finder.key_of(sources))
    (sources / "strategies/new.py").rename(sources / "protocol/new.py")
    keys.append(finder.key_of(sources))
    with (sources / "controller/core/core.py").open("a") as file:
        file.write("\n")
    keys.append(finder.key_of(sources))
    assert len({*keys}) == 4
    assert finder.key_of(ROOT) == keys[0]


@pytest.mark.usefixtures("no_cache")
def test_only_a_build_of_these_sources_is_found_and_only_if_it_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setenv(finder.SWITCH, str(tmp_path / "builds"))
    assert finder.found() is None
    assert not finder.is_outdated()
    (tmp_path / "builds" / "0123").mkdir(parents=True)
    finder.found.cache_clear()
    assert finder.found() is None
    assert finder.is_outdated()
    mine = tmp_path / "builds" / finder.key_of(ROOT)
    mine.mkdir()
    finder.found.cache_clear()
    assert finder.found() == mine
    assert not finder.is_outdated()
    monkeypatch.setenv(finder.SWITCH, "0")
    finder.found.cache_clear()
    assert finder.found() is None
    assert not finder.is_outdated()


def test_modules_of_a_build_are_imported_in_place_of_their_sources(tmp_path, monkeypatch):
    """With an extension module that every Python has, under a name of ours."""
    there = next(Path(one.__file__) for one in map(importlib.import_module, ["msgspec._core"]))
    (tmp_path / "strategies").mkdir()
    shutil.copy(there, tmp_path / "strategies" / f"_core{finder.SUFFIX}")
    found = finder.Finder(tmp_path)
    assert found.find_spec("strategies.routing") is None
    spec = found.find_spec("strategies._core")
    assert spec is not None
    assert spec.origin == str(tmp_path / "strategies" / f"_core{finder.SUFFIX}")
