"""What is beside the configuration is found there: trackers and programs of the user's own."""

import os
from pathlib import Path

import pytest

from controller.check.problems import check
from controller.config.load import load_config
from controller.config.models import Config
from controller.config.places import with_absolute_paths
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError


def test_a_tracker_and_a_program_to_notify_are_found_beside_the_configuration(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "tell.sh").touch()
    config = Config.model_validate(
        {
            "logging": {"trackers": ["wandb", "mine.py:make", "pkg.mod:make", "gone.py:make"]},
            "notify": {"command": ["sh", "tell.sh", "gone.sh"]},
        },
        strict=False,
    )
    found = with_absolute_paths(config, tmp_path)
    assert found.logging.trackers == ("wandb", f"{tmp_path}/mine.py:make", "pkg.mod:make", "gone.py:make")
    assert found.notify.command == ("sh", f"{tmp_path}/tell.sh", "gone.sh")


def test_a_name_that_no_file_can_have_is_left_for_check_to_name(tmp_path):
    name = "a" * 300
    tree = {
        "agent": {"function": f"{name}.py:run"},
        "data": {"path": name},
        "model": {"path": name},
        "notify": {"command": [f"{name}.sh"]},
    }
    found = with_absolute_paths(Config.model_validate(tree, strict=False), tmp_path)
    assert (found.agent.function, found.data.path, found.model.path) == (f"{name}.py:run", name, name)
    assert found.notify.command == (f"{name}.sh",)


def test_a_pipe_of_a_shell_keeps_its_name(tmp_path):
    reads, writes = os.pipe()
    tree = {"data": {"path": f"/dev/fd/{reads}"}}
    assert with_absolute_paths(Config.model_validate(tree), tmp_path).data.path == f"/dev/fd/{reads}"
    os.close(reads)
    os.close(writes)


def mounted(folder: Path, date: str) -> Path:
    """A ConfigMap as Kubernetes mounts it in a pod: links into a folder of a date."""
    (folder / date).mkdir(parents=True)
    (folder / "..data").symlink_to(date)
    for name in ("play.py", "run.yaml"):
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "play.py").write_text("def score(completion):\n    return 0.0\n")
    (folder / "run.yaml").write_text(
        "reward: {function: play.py:score}\nlogging: {trackers: ['lib/log.py:make']}\n"
    )
    (folder / date / "lib").mkdir()
    (folder / date / "lib" / "log.py").touch()
    (folder / "lib").symlink_to("..data/lib")  # links are at the top alone
    return folder


def test_code_of_a_mounted_configuration_has_the_path_that_it_has_in_other_pods(tmp_path):
    folder = tmp_path / "config"
    for date in ("..2026_01_01", "..2026_01_02"):  # the latter is of the next pod
        config = load_config(mounted(folder, date) / "run.yaml")
        assert config.reward.function == f"{folder}/play.py:score"
        assert config.logging.trackers == (f"{folder}/lib/log.py:make",)
        folder.rename(tmp_path / date)


def test_a_link_whose_name_alone_tells_the_format_keeps_it(tmp_path):
    """As the cache of the Hub has its files."""
    (tmp_path / "blob").write_text("prompt,answer\na,1\n")
    (tmp_path / "rows.csv").write_text("prompt\nb\n")
    (tmp_path / "real.tsv").write_text("prompt\tanswer\nb\t1\n")
    links = {"train.csv": "blob", "other.csv": "rows.csv", "tabs.csv": "real.tsv", "train.jsonl": "blob"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)

    def meant(name: str) -> str:
        config = Config.model_validate({"data": {"path": name}})
        return Path(with_absolute_paths(config, tmp_path).data.path).name

    assert [*map(meant, links)] == ["train.csv", "rows.csv", "real.tsv", "blob"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(tmp_path)
    return place


def test_a_path_may_begin_with_the_users_home(home):
    (home / "model").mkdir()
    (home / "model" / "config.json").write_text("{}")
    for name in ("mine.py", "rows.jsonl", "held.jsonl", "tell.sh"):
        (home / name).touch()
    Path("run.yaml").write_text(
        "run: {dir: ~/runs, resume: ~/runs/old}\nmodel: {path: ~/model}\n"
        "reward: {function: ~/mine.py:score}\n"
        "data: {path: ~/rows.jsonl}\nevaluation: {data: {held: {path: ~/held.jsonl}}}\n"
        "logging: {trackers: ['~/mine.py:make']}\nnotify: {command: [sh, ~/tell.sh, '~']}\n"
        "weights: {directory: ~/fast}\ncontroller: {keys: ~/keys}\n"
        "simulation: {workload: {trace: ~/runs/a}}\ncluster: {shared_dir: ~/shared}\n"
    )
    found = load_config("run.yaml")
    assert (found.run.dir, found.run.resume) == (f"{home}/runs", f"{home}/runs/old")
    assert (found.model.path, found.data.path) == (f"{home}/model", f"{home}/rows.jsonl")
    assert found.reward.function == f"{home}/mine.py:score"
    assert found.evaluation.data["held"].path == f"{home}/held.jsonl"
    assert found.logging.trackers == (f"{home}/mine.py:make",)
    assert found.notify.command == ("sh", f"{home}/tell.sh", "~")
    assert (found.weights.directory, found.controller.keys) == (f"{home}/fast", f"{home}/keys")
    assert found.simulation.workload.trace == f"{home}/runs/a"
    assert found.cluster.shared_dir == f"{home}/shared"


def test_what_is_not_at_home_is_named_where_it_was_looked_for(home):
    Path("run.yaml").touch()
    config = load_config("run.yaml", ["model.path=~/none", "data.path=~/none.jsonl", "run.dir=~/runs"])
    told = "\n".join(finding.text for finding in check(config) if finding.level == "error")
    assert f"there is no model at {home}/none: " in told
    assert f"{home}/none.jsonl" in told
    assert "~" not in told


def test_coefficients_are_read_at_home(home):
    Path("run.yaml").touch()
    with pytest.raises(ConfigError, match=f"and {home}/none.json cannot be read"):
        load_config("run.yaml", ["staleness.cost_model=~/none.json"])


def test_a_made_model_at_home_stays_there_when_its_run_is_set_aside(home):
    Path("run.yaml").touch()
    told = ["run.dir=~/runs", "model.path=~/model", "model.factory=module:make"]
    first = RunDirectory(load_config("run.yaml", told))
    assert (first.path, first.model) == (home / "runs" / "run", home / "model")
    (first.path / "run.db").touch()
    first.close()
    again = RunDirectory(load_config("run.yaml", [*told, "run.resume=never"]))
    assert again.previous == home / "runs" / "run.1"
    again.close()
    assert not Path("~").exists()
