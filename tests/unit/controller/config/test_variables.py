"""Environment variables in a configuration: what they stand for, and that what is kept of a run has none."""

import os
from functools import partial

import pytest
import yaml

from controller.config.load import load_config
from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.config.variables import NotExpanded, expand
from controller.core.core import Core
from controller.core.worker_settings import worker_settings
from controller.durability.release import facts_of
from controller.durability.store import Store
from controller.host.resume import _refuse_changes
from controller.host.run_directory import RunDirectory
from controller.host.shell import Shell
from controller.host.stepper import Stepper
from protocol.errors import ConfigError
from protocol.messages import Welcome
from protocol.settings import load_settings
from strategies.cost_model import QWEN_7B_TP1, dump_coefficients, scaled

SECRET = "hf_do_not_write_me"
KEY = "rollout: {vllm: {engine_args: {hf_token: '${TOKEN}'}}}"


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("STEPS", "12")

    def load(text: str, *overrides: str) -> Config:
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return load_config(str(file), overrides)

    return load


def problem(load, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("${A}", "1"), ("x-${A}-${A}", "x-1-1"), ("${B:-none}", "none"), ("${EMPTY:-none}", "none"),
        ("${EMPTY}", ""), ("${A:-none}", "1"), ("${B:-}", ""), ("$${A}", "${A}"), ("$A", "$A"),
    ],
)  # fmt: skip
def test_a_variable_stands_for_its_value_or_its_default(text, meant):
    assert expand(text, {"A": "1", "EMPTY": ""}) == meant


@pytest.mark.parametrize("text", ["${run.name}", "${oc.env:A}", "${", "${A", "${}", "${A:x}", "${1}"])
def test_other_forms_are_refused_with_what_would_do(text):
    with pytest.raises(NotExpanded, match=r"Expected \$\{NAME\} or \$\{NAME:-default\}"):
        expand(text, {"A": "1"})


def test_values_of_all_kinds_come_out_of_the_environment(load, monkeypatch):
    monkeypatch.setenv("LAYERS", "[q_proj, v_proj]")
    monkeypatch.setenv("ALGORITHM", "rloo")
    config = load(
        "run: {name: '${NAME:-mine}', steps: '${STEPS}'}\n"
        "trainer: {algorithm: '${ALGORITHM}', lr: '${LR:-1e-5}', "
        "lora: {rank: 8, target_modules: '${LAYERS}'}}\n"
        "rollout: {sampling: {stop: ['${STEPS}']}, vllm: {engine_args: {hf_token: '${TOKEN}', "
        "max_num_batched_tokens: '${STEPS}'}}}"
    )
    assert (config.run.name, config.run.steps) == ("mine", 12)
    assert (config.trainer.algorithm, config.trainer.lr) == ("rloo", 1e-5)
    assert config.trainer.lora.target_modules == ("q_proj", "v_proj")
    assert config.rollout.sampling.stop == ("12",)
    assert config.rollout.vllm.engine_args == {"hf_token": SECRET, "max_num_batched_tokens": 12}


def test_a_text_of_digits_stays_a_text(load):
    assert load("run: {name: '${STEPS}'}").run.name == "12"


def test_a_variable_that_is_not_set_is_named_with_its_line(load):
    text = problem(
        load, "run:\n  name: a\n  dir: ${NOWHERE}/runs\ntrainer: {lora: {rank: 8, target_modules: ['${NO}']}}"
    )
    assert "2 problems" in text
    assert "run.dir (line 3): names the environment variable NOWHERE, which is not set." in text
    assert "export NOWHERE=..." in text
    assert "trainer.lora.target_modules.0 (line 4): names the environment variable NO" in text


@pytest.mark.parametrize("words", ["['${NO}', '${STEPS}']", "['${STEPS}', '${NO}']", "['${NO}', '${NO}']"])
def test_a_variable_that_is_not_set_stands_in_a_list_beside_another_one(load, words):
    count = words.count("NO")
    text = problem(load, f"notify: {{command: {words}}}")
    assert f"{count} problem" in text
    assert text.count("names the environment variable NO, which is not set.") == count


def test_an_override_takes_the_place_of_a_variable_that_is_not_set(load):
    assert load("run: {name: '${NOWHERE}'}", "run.name=b").run.name == "b"
    assert load("", "run.name=${STEPS}").run.name == "12"
    assert "run.name (command line): names the" in problem(load, "", "run.name=${NOWHERE}")


def test_a_value_that_is_refused_is_shown_as_it_was_written(load):
    text = problem(load, "run: {steps: '${TOKEN}'}")
    assert "run.steps (line 1): '${TOKEN}' is refused" in text
    assert SECRET not in text


def test_the_run_directory_keeps_what_was_written(load, tmp_path):
    config = load(f"{KEY}\nrun: {{dir: '{tmp_path}/${{STEPS}}', name: a, steps: '${{STEPS}}'}}")
    directory = RunDirectory(config)
    try:
        assert directory.path == tmp_path / "12" / "a"
        text = (directory.path / "config.yaml").read_text()
        kept = yaml.safe_load(text)
        assert SECRET not in text
        assert kept["rollout"]["vllm"]["engine_args"] == {"hf_token": "${TOKEN}"}
        assert kept["run"]["steps"] == 12  # a number is no secret, and others read the file
    finally:
        directory.close()


def test_names_of_code_and_files_are_kept_as_found(load, tmp_path, monkeypatch):
    (tmp_path / "task.py").write_text("")
    monkeypatch.setenv("HERE", str(tmp_path))
    config = load("reward: {function: '${HERE}/task.py:score'}\ndata: {path: '${HERE}/task.py:prompts'}")
    assert config.as_written().reward.function == f"{tmp_path}/task.py:score"
    assert config.as_written().data.path == f"{tmp_path}/task.py:prompts"


@pytest.mark.parametrize("name", ["published", "costs.json"])
def test_the_core_gets_the_cost_model_that_a_variable_names(load, tmp_path, monkeypatch, name):
    (tmp_path / "costs.json").write_text(dump_coefficients(scaled(QWEN_7B_TP1, decode=2.0, prefill=3.0)))
    monkeypatch.setenv("COSTS", name)
    written = load("staleness: {cost_model: '${COSTS}'}").as_written()
    core, plain = (
        Core(one, load_strategies(one), run_dir="")
        for one in (written, load(f"staleness: {{cost_model: {name}}}"))
    )
    assert core.state.coefficients == plain.state.coefficients


def test_the_core_knows_rewards_by_the_names_that_workers_tell(load, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("")
    monkeypatch.setenv("MINE", "mine.py:brevity")
    config = load(
        "reward: {rewards: [{function: '${MINE}'}, {kind: exact, name: 'right_${STEPS}'}, "
        "{kind: judge, base_url: 'http://x/v1', model: '${TOKEN}'}]}"
    )
    assert config.as_written().reward_names == ("brevity", "right_12", "judge")
    assert SECRET not in config.as_written().model_dump_json()


def test_the_core_and_the_journal_know_no_secret_and_workers_do(load, tmp_path):
    config = load(f"{KEY}\nrun: {{dir: '{tmp_path}'}}")
    shell = Shell(
        config, on_step=print, on_evaluation=print, on_warning=print, on_progress=lambda fraction, text: None
    )
    shell.directory = RunDirectory(config)
    try:
        shell._weights_key = None
        core = Core(shell._written, load_strategies(shell._written), run_dir=str(shell.directory.path))
        shell._stepper = Stepper(Store(":memory:"), core, on_skip=print)
        assert SECRET not in repr(facts_of(shell._written, run_dir="", import_paths=()))
        assert SECRET not in core.settings.model_dump_json()
        assert SECRET not in core.state.config.model_dump_json()
        welcome = shell._prepared(
            Welcome(1.0, 10.0, core.settings.model_dump_json(), name="rollout-0"), "rollout"
        )
        assert SECRET in welcome.settings
        assert welcome.name == "rollout-0"
        wanted = worker_settings(config, str(shell.directory.path), ())
        assert welcome.settings == wanted.model_dump_json()
        trainers = core.settings.model_copy(update={"newest_version": 15}).model_dump_json()
        welcome = shell._prepared(Welcome(1.0, 10.0, trainers, name="trainer"), "trainer")
        assert load_settings(welcome.settings) == wanted.model_copy(update={"newest_version": 15})
    finally:
        shell.directory.close()


def test_a_run_goes_on_whether_the_value_was_written_out_or_not(load, tmp_path):
    was, refuse = load(KEY).as_written(), partial(_refuse_changes, tmp_path, was_at=str(tmp_path), data=[])
    refuse(was, load(KEY))
    refuse(load("run: {seed: 12}"), load("run: {seed: '${STEPS}'}"))
    refuse(load(KEY.replace("${TOKEN}", SECRET)), load(KEY))
    with pytest.raises(ConfigError, match="hf_token: '\\$\\{TOKEN\\}' there, not set now"):
        refuse(was, load(""))
    with pytest.raises(ConfigError, match="hf_token: not set there, '\\$\\{TOKEN\\}' now"):
        refuse(load(""), load(KEY))


def test_a_key_with_a_point_in_it_is_no_path(load):
    config = load("data: {columns: {'a.b': '${STEPS}'}}")
    assert config.data.columns == {"a.b": "12"}
    assert config.as_written().data.columns == {"a.b": "${STEPS}"}


def test_a_variable_that_is_no_text_is_named_and_not_shown(load, monkeypatch):
    monkeypatch.setenv("TOKEN", os.fsdecode(b"s3cr\xff"))
    for value in ("${TOKEN}", "${TOKEN:-x}"):
        text = problem(load, f"run: {{name: '{value}'}}")
        assert (
            "run.name (line 1): names the environment variable TOKEN, whose value is no text in UTF-8" in text
        )
        assert "s3cr" not in text
