"""The controller of a rendered run is told all that the command line of `render` said, and who is started."""

import re
import shlex

import pytest
import yaml

from controller.cli.main import main
from controller.cluster.plan import roles
from controller.config.load import load_config

CONFIG = "examples/cluster.yaml"
GIVEN = ("run.name=second", "rollout.group_size=4", "model.path=/shared/it's $HOME", "cluster.account=lab")
SUPERVISED = ("trainer.algorithm=sft", "rollout.instances=0")


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def rendered(folder, where, *overrides):
    assert main(["render", where, CONFIG, *overrides, "-o", str(folder)]) == 0
    return {path.name: path.read_text() for path in folder.iterdir()}


def jobs_of(files):
    manifests = yaml.safe_load_all(files["staleflow.yaml"])
    return {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "Job"}


def container_of(job):
    return job["template"]["spec"]["containers"][0]


def words_for_the_controller(files):
    if "controller.sbatch" in files:
        text = files["controller.sbatch"].partition("launch.py run ")[2].replace("\\\n", " ")
    else:
        job = next(job for name, job in jobs_of(files).items() if name.endswith("-controller"))
        text = (
            container_of(job)["command"][2]
            .partition("launch.py run ")[2]
            .partition(" & pid=")[0]
            .replace("$$", "$")
        )
    return shlex.split(text)[1:]


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_the_controller_is_told_the_overrides_but_those_of_the_cluster(where, tmp_path):
    files = rendered(tmp_path, where, *GIVEN)
    config = load_config(CONFIG, words_for_the_controller(files))
    assert (config.run.name, config.rollout.group_size) == ("second", 4)
    assert config.model.path == "/shared/it's $HOME"
    assert not any(word.startswith("cluster.") for word in words_for_the_controller(files))
    assert not config.trainer.local


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_what_a_cluster_changes_comes_last(where, tmp_path):
    files = rendered(tmp_path, where, "run.dir=elsewhere", "trainer={local: true, ranks: 2}")
    words = words_for_the_controller(files)
    config = load_config(CONFIG, words)
    assert config.run.dir == "/shared/staleflow/runs"
    assert not config.trainer.local
    assert "run.dir=elsewhere" not in words


def test_kubernetes_waits_for_the_run_that_was_asked_for(tmp_path):
    files = rendered(tmp_path, "kubernetes", "run.name=second")
    probe = container_of(jobs_of(files)["second-controller"])["readinessProbe"]["exec"]["command"][-1]
    config = load_config(CONFIG, words_for_the_controller(files))
    assert probe == f"{config.run.dir}/{config.run.name}/address"


def test_a_supervised_run_has_no_rollout_worker(tmp_path):
    assert roles(load_config(CONFIG, SUPERVISED)) == ("trainer",)
    files = rendered(tmp_path / "slurm", "slurm", *SUPERVISED)
    assert sorted(files) == ["controller.sbatch", "submit.sh", "trainer.sbatch"]
    assert not re.search("rollout.(sbatch|key)|role rollout|--array", "".join(files.values()))
    files = rendered(tmp_path / "kubernetes", "kubernetes", *SUPERVISED)
    assert sorted(jobs_of(files)) == ["ledger-controller", "ledger-trainer"]
    assert "ledger-rollout" not in "".join(files.values())


def test_a_run_that_generates_has_as_many_as_it_says(tmp_path):
    assert "--array=1-8 " in rendered(tmp_path, "slurm")["submit.sh"]
