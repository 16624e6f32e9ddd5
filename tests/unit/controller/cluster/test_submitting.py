"""The scripts that start a run, run: with sbatch and kubectl of this test, and keys that are real."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import main
from protocol.wire.security import Keyring, load_worker_key

ROOT = Path(__file__).resolve().parents[4]
CONFIG = "examples/cluster.yaml"
PYTHON = f"""#!/bin/sh
[ "$2" = check ] && exit 0
exec {sys.executable} "$@"
"""
SAYS_WHAT_IT_IS_TOLD = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
[ "$1" != apply ] || cat > /dev/null
echo 42
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the programs that a script calls, and `log` of what sbatch and kubectl were told."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "bin").mkdir()
    programs = {"python3": PYTHON, "python": PYTHON}
    for name in ("sbatch", "kubectl"):
        programs[name] = SAYS_WHAT_IT_IS_TOLD.format(log=tmp_path / "log")
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def rendered(place, where, name):
    words = [f"run.name={name}", f"cluster.shared_dir={place}/shared"]
    assert main(["render", where, CONFIG, *words, "-o", str(place / where)]) == 0


def start(place, where):
    script = {"slurm": "submit.sh", "kubernetes": "apply.sh"}[where]
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "STALEFLOW_PYTHON": str(place / "bin" / "python")}
    done = subprocess.run(["bash", place / where / script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (place / "log").read_text()


def keys_of(place, where, name):
    above = {"slurm": place / "shared" / "staleflow", "kubernetes": place / "kubernetes"}[where]
    return above / "keys" / name


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_a_second_run_in_the_same_folder_has_keys_of_its_own_that_admit_to_no_other(place, where):
    for name in ("alpha", "beta"):
        rendered(place, where, name)
        start(place, where)
    alpha, beta = (Keyring(keys_of(place, where, name)) for name in ("alpha", "beta"))
    for role in ("trainer", "rollout"):
        key = load_worker_key(keys_of(place, where, "beta") / f"beta-{role}.key")
        assert beta.grant(key.public).roles == (role,)
        assert alpha.grant(key.public) is None
        assert key.server == beta.server.public != alpha.server.public


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_a_script_that_was_stopped_between_two_keys_makes_the_other_when_it_is_called_again(place, where):
    rendered(place, where, "alpha")
    start(place, where)
    keys = keys_of(place, where, "alpha")
    kept = (keys / "alpha-trainer.key").read_text()
    (keys / "alpha-rollout.key").unlink()
    (keys / "workers" / "alpha-rollout.json").unlink()
    start(place, where)
    assert (keys / "alpha-trainer.key").read_text() == kept
    assert Keyring(keys).grant(load_worker_key(keys / "alpha-rollout.key").public).name == "alpha-rollout"


@pytest.mark.parametrize("answer", ["42", "42;east"])
def test_slurm_is_given_the_controller_first_and_what_follows_it(place, answer):
    sbatch = place / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("echo 42", f"echo '{answer}'"))
    rendered(place, "slurm", "alpha")
    given = [line.partition("sbatch ")[2] for line in start(place, "slurm").splitlines()]
    after = "--dependency=after:42 --export=ALL,CONTROLLER_JOB=42"
    assert given == [
        f"--parsable {place}/slurm/controller.sbatch",
        f"{after} {place}/slurm/trainer.sbatch",
        f"{after} --array=1-8 {place}/slurm/rollout.sbatch",
    ]
