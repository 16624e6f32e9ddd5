"""`launch.py init` writes what runs: it loads, passes the check, and scores."""

import json
import re
import shlex
from pathlib import Path

import pytest

from controller.check.problems import check
from controller.cli.main import main
from controller.cli.planning.init import columns_of
from controller.config.load import load_config
from install.project import ROOT, launcher
from protocol.errors import ConfigError
from protocol.rewards.shapes import Signature, offered_names


def errors(config):
    return [finding for finding in check(config) if finding.level == "error"]


def test_without_a_word_it_is_the_little_task_and_passes_the_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--steps", "7"]) == 0
    said = capsys.readouterr().out
    assert "launch.py check mine/run.yaml" in said
    config = load_config("mine/run.yaml")
    assert (config.run.name, config.run.steps) == ("mine", 7)
    assert errors(config) == []
    scope = {}
    exec((tmp_path / "mine" / "reward.py").read_text(), scope)
    assert scope["score"]("12=3 4=7 #7", "7") == 1.0
    assert scope["score"]("12=3 4=7 #8", "7") == 0.0


def test_what_to_type_next_starts_from_this_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    said = capsys.readouterr().out + (tmp_path / "mine" / "run.yaml").read_text()
    assert said.count(f"python3 {shlex.quote(str(ROOT / 'launch.py'))} ") == said.count("launch.py ") == 5
    monkeypatch.chdir(ROOT)
    assert launcher() == "python3 launch.py"


def test_what_the_reward_file_says_may_be_a_parameter_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    told = (tmp_path / "mine" / "reward.py").read_text().partition("(also ")[2].partition(";")[0]
    names = re.findall(r"`(\w+)`", told)
    assert names
    signature = Signature(("completion", *names), ("completion", *names), takes_any=True)
    assert set(names) <= offered_names(signature, {"prompt": "?"})


NAMES = [
    "2026", "1e3", "null", "true", "0x10", "10:30", "[a]", "a: b", "${HOME}", "$${x}", "x #1", "it's",
    'say "hi"', "a\\b", "*all", "&one", "{a}", "- b", "? c", "!tag", "%d", "~", "Zürich 北京",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_mean_something_in_yaml_are_the_names_that_they_are(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of" / name).mkdir(parents=True)
    data = tmp_path / "of" / name / "rows.jsonl"
    data.write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    model = model_in(tmp_path / "of" / name / "model")
    assert main(["init", f"./{name}", "--model", model, "--data", str(data)]) == 0
    config = load_config(tmp_path / name / "run.yaml")
    assert (config.run.name, config.model.path, config.data.path) == (name, model, str(data))
    compile((tmp_path / name / "reward.py").read_text(), "reward.py", "exec")
    assert not [
        finding for finding in errors(config) if finding.field in ("run.name", "data.path", "run.dir")
    ]


def test_a_folder_of_two_lines_is_refused_in_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "two\nlines"]) == 2
    said = capsys.readouterr().err
    assert "which a configuration cannot name" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def model_in(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("reward", ["function", "math", "exact", "choice"])
def test_own_model_data_and_reward_are_written_into_a_configuration_that_loads(tmp_path, monkeypatch, reward):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "questions.jsonl"
    data.write_text(json.dumps({"question": "1+1?", "solution": "2"}) + "\n")
    words = ["--model", model_in(tmp_path / "model"), "--data", str(data), "--reward", reward, "--gpus", "4"]
    assert main(["init", "big", *words]) == 0
    config = load_config("big/run.yaml")
    assert config.data.path == str(data)
    assert config.data.columns == {"prompt": "question", "answer": "solution"}
    assert config.rollout.instances == 3
    assert (tmp_path / "big" / "reward.py").exists() == (reward == "function")


@pytest.mark.parametrize(("positions", "prompt", "response"), [(256, 85, 171), (32_768, 1024, 2048)])
def test_lengths_are_those_that_the_model_has_room_for(tmp_path, monkeypatch, positions, prompt, response):
    monkeypatch.chdir(tmp_path)
    model = Path(model_in(tmp_path / "model"))
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    assert main(["init", "mine", "--model", str(model)]) == 0
    rollout = load_config("mine/run.yaml").rollout
    assert (rollout.max_prompt_tokens, rollout.max_response_tokens) == (prompt, response)
    assert not [finding for finding in errors(load_config("mine/run.yaml")) if "positions" in finding.text]


@pytest.mark.parametrize("text", ["{", "[]", '{"max_position_embeddings": "many"}'])
def test_a_model_that_cannot_be_read_is_one_sentence_and_writes_nothing(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    model = Path(model_in(tmp_path / "model"))
    (model / "config.json").write_text(text)
    assert main(["init", "mine", "--model", str(model)]) == 2
    said = capsys.readouterr().err
    assert f"--model {model} cannot be read: " in said
    assert said.count("\n") == 1
    assert not (tmp_path / "mine").exists()


def test_nothing_is_written_over_and_a_wrong_answer_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["--reward", "taste"], "expected one of function"),
        (["--reward", "choice"], "--reward choice needs --data"),
        (["--model", str(tmp_path)], "has no config.json"),
        (["--data", "x.jsonl"], "needs --model"),
    ):
        assert main(["init", "none", *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["init", "mine"]) == 0
    before = (tmp_path / "mine" / "run.yaml").read_text()
    assert main(["init", "mine", "--steps", "9"]) == 2
    assert (tmp_path / "mine" / "run.yaml").read_text() == before


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"prompt": "a"}', '{"a": 1}'])
def test_data_without_prompt_or_answer_is_said(tmp_path, text):
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match="xpected"):
        columns_of(file)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file" / "task")]) == 2
    assert "cannot be written: Not a directory. Name a folder" in capsys.readouterr().err


@pytest.mark.parametrize("begin", ["\ufeff", "\n \n"])
def test_a_mark_of_utf_8_or_blank_lines_before_the_first_row_do_not_matter(tmp_path, begin):
    (tmp_path / "rows.jsonl").write_text(f'{begin}{{"question": "q", "solution": "s"}}\n', encoding="utf-8")
    assert columns_of(tmp_path / "rows.jsonl") == {"prompt": "question", "answer": "solution"}
