"""What Kubernetes mounts for a run: the code beside its configuration, by the names that it has there."""

import pytest
import yaml

from controller.cli.main import main
from controller.config.load import load_config

MINE = """
run: {name: demo}
reward: {function: rew.py:score}
data: {path: rows.py:prompts, sources: []}
trainer: {loss: my_loss.py:loss}
evaluation: {reward_function: held.py:score, data: {test: {path: exam.py:prompts}}}
staleness: {routing: routes.py:route}
logging: {trackers: [track.py:make]}
"""
NAMED = {"rew.py", "rows.py", "my_loss.py", "held.py", "exam.py", "routes.py", "track.py"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (*NAMED, "notes.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "mine.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rendered(capsys, *words):
    assert main(["render", "kubernetes", *words]) == 0
    text = capsys.readouterr().out.partition("# ---- staleflow.yaml\n")[2]
    return {(m["kind"], m["metadata"]["name"]): m for m in yaml.safe_load_all(text)}


def test_the_config_map_holds_the_code_of_whatever_key_names_it(folder, capsys):
    found = rendered(capsys, "mine.yaml")["ConfigMap", "demo-config"]["data"]
    assert set(found) == {"mine.yaml", *NAMED}


def test_an_override_that_names_code_from_another_folder_finds_it_in_the_pod(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    override = f"reward.function={folder.name}/notes.py:score"
    manifests = rendered(capsys, f"{folder.name}/mine.yaml", override, "rollout.group_size=4")
    assert "notes.py" in manifests["ConfigMap", "demo-config"]["data"]
    job = manifests["Job", "demo-controller"]["spec"]["template"]["spec"]["containers"][0]
    assert " reward.function=notes.py:score rollout.group_size=4 " in job["command"][2]
    monkeypatch.chdir("/")  # a pod starts elsewhere, and has the code beside the file
    config = load_config(folder / "mine.yaml", ["reward.function=notes.py:score"])
    assert config.reward.function == f"{folder}/notes.py:score"


def test_nothing_of_a_command_is_expanded_by_kubernetes(folder, capsys):
    manifests = rendered(capsys, "mine.yaml", "notify.url=https://$(POD_NAME).example/$x")
    job = manifests["Job", "demo-controller"]["spec"]["template"]["spec"]["containers"][0]
    assert "'notify.url=https://$$(POD_NAME).example/$$x'" in job["command"][2]
