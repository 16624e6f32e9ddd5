"""The image that the rendered files of Kubernetes ask for is what they expect, as far as a text can say."""

import re
import shlex
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "Dockerfile").read_text().splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def rendered_pods():
    for manifest in yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "staleflow.yaml").read_text()):
        if manifest["kind"] == "Job":
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]


def values(word: str) -> list[str]:
    return [rest for name, rest in STEPS if name == word]


def test_the_project_is_where_pods_start_and_what_it_copies_is_there():
    (place,) = values("WORKDIR")
    for _, pod in rendered_pods():
        assert pod["containers"][0]["workingDir"] == place
        assert pod["containers"][0]["image"] == "staleflow:latest"
    for copied in values("COPY"):
        for name in shlex.split(copied)[:-1]:
            assert (ROOT / name).exists(), name


def test_its_arguments_are_extras_and_constraints_that_there_are():
    defaults = dict(one.split("=", 1) for one in values("ARG"))
    examples = dict(re.findall(r"--build-arg (\w+)=(\S+)", "\n".join(LINES)))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for arguments in (defaults, examples):
        assert {*arguments["EXTRAS"].split(",")} <= {*extras}
        assert (ROOT / "constraints" / f"{arguments['CONSTRAINTS']}.txt").exists()
    assert {*re.findall(r"--build-arg (\w+)=", "\n".join(LINES))} <= {*defaults}


def test_it_runs_as_the_owner_of_the_keys_and_installs_nothing_by_itself():
    assert not values("USER")
    assert any("STALEFLOW_NO_INSTALL=1" in line for line in values("ENV"))


def test_neither_keys_nor_runs_get_into_it():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"**/runs", "**/keys", "**/*.key", ".venv*", ".git"} <= {*ignored}


def test_the_controller_is_ready_while_it_listens():
    for name, pod in rendered_pods():
        (container,) = pod["containers"]
        assert ("readinessProbe" in container) is (name == "ledger-controller")
    command = next(pod for name, pod in rendered_pods() if name == "ledger-controller")["containers"][0]
    assert command["readinessProbe"]["exec"]["command"] == [
        "test", "-e", "/shared/staleflow/runs/ledger/address"
    ]  # fmt: skip
    assert "run.dir=/shared/staleflow/runs" in command["command"][2]
    assert command["envFrom"] == [{"secretRef": {"name": "ledger-environment", "optional": True}}]
