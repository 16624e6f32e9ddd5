"""A built-in engine is an entry of one table: a made-up one is found by all that goes by it."""

import importlib
import tomllib
from pathlib import Path

import pytest

import install
from controller.check.plugins import plugin_remarks
from controller.check.problems import check
from controller.cli.needs import require
from controller.config.load import load_config
from controller.core.worker_settings import worker_settings
from docs.make_schema import render
from protocol.engines import ENGINES, BuiltInEngine
from protocol.errors import ConfigError
from workers.rollout.worker import make_engine

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
def make(settings, model_directory):
    raise RuntimeError(f"made for {model_directory}")

def problems(rollout, shape):
    yield "rollout.max_running", f"is {rollout.max_running}, more than this engine has room for."
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """The name of an engine that needs an extra which is not installed."""
    (tmp_path / "a_made_up_engine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(install.EXTRAS, "made-up", ("no_such_module_of_an_engine",))
    monkeypatch.setitem(
        ENGINES,
        "made_up",
        BuiltInEngine("a_made_up_engine:make", "made up", extra="made-up", check="a_made_up_engine:problems"),
    )
    return "made_up"


def config_of(tmp_path, engine, *more):
    (tmp_path / "run.yaml").write_text(f"run: {{dir: '{tmp_path}'}}\nrollout: {{max_running: 7}}\n")
    return load_config(tmp_path / "run.yaml", [f"rollout.engine={engine}", *more])


def test_its_name_is_a_value_of_the_configuration_and_of_the_schema(tmp_path, made_up):
    config = config_of(tmp_path, made_up)
    assert config.rollout.engine == made_up
    assert not [remark for remark in plugin_remarks(config) if remark[1] == "rollout.engine"]
    assert '"made_up"' in render()


def test_what_is_wrong_with_a_run_on_it_is_said_before_one_starts(tmp_path, made_up):
    found = [(one.field, one.text) for one in check(config_of(tmp_path, made_up))]
    assert ("rollout.max_running", "is 7, more than this engine has room for.") in found


def test_its_extra_is_installed_for_local_instances(tmp_path, made_up, monkeypatch):
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    with pytest.raises(install.Lacking) as lacking:
        require(config_of(tmp_path, made_up))
    assert "made-up" in lacking.value.extras


def test_a_worker_makes_it(tmp_path, made_up):
    settings = worker_settings(config_of(tmp_path, made_up), str(tmp_path), ())
    with pytest.raises(RuntimeError, match="made for /a/model"):
        make_engine(settings, "/a/model")


def test_every_entry_has_a_folder_a_factory_its_checks_an_extra_and_its_place_in_the_docs():
    folders = {path.name for path in (ROOT / "workers/engines").iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ENGINES), "each folder of workers/engines is an entry of protocol/engines.py"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page, setup = ((ROOT / "docs" / name).read_text() for name in ("engines.md", "setup.md"))
    for name, engine in ENGINES.items():
        module, _, factory = engine.factory.partition(":")
        assert module.startswith(f"workers.engines.{name}")
        path = ROOT / (module.replace(".", "/") + ".py")
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        assert f"def {factory}(" in path.read_text()
        said = f"`{name}` ({engine.about})"
        assert said in " ".join(page.split()), f"docs/engines.md lists the engines: write {said} there"
        if engine.check:
            module, _, function = engine.check.partition(":")
            assert callable(getattr(importlib.import_module(module), function))
        if engine.extra:
            assert engine.extra in extras, f"pyproject.toml has no extra {engine.extra}"
            assert engine.extra in install.EXTRAS, f"install.EXTRAS has no {engine.extra}"
            row = f"rollout.engine: {name}"
            assert row in setup, f"docs/setup.md does not say that {row} needs {engine.extra}"


def test_a_worker_makes_none_for_a_temperature_that_it_does_not_sample_at(tmp_path):
    config = config_of(tmp_path, "vllm", "rollout.sampling.temperature=0.004")
    with pytest.raises(ConfigError, match=r"`rollout.sampling.temperature` is 0.004.* from 0.01 to 2"):
        make_engine(worker_settings(config, str(tmp_path), ()), "/a/model")
