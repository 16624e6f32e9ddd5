"""What `check` says of packages that are installed for another build of torch, and of vLLM elsewhere."""

from importlib import metadata

import pytest

from controller.check import vllm
from controller.check.vllm import build_problem, vllm_problems
from install.vllm_environment import VLLM_ENVIRONMENT
from protocol.settings import RolloutSettings


def installed(monkeypatch, **versions):
    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm.metadata, "version", version)


@pytest.mark.parametrize(
    ("torch", "other"), [("2.13.0+cpu", "0.28.0"), ("2.13.0", "0.28.0+cpu"), ("2.13.0+cpu", "0.28.0+cu130")]
)
@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
def test_a_companion_of_another_build_is_refused_with_what_mends_it(monkeypatch, torch, other, name):
    installed(monkeypatch, torch=torch, **{name: other})
    words = build_problem()
    assert f"{name} {other} is of another build than torch {torch}" in words
    assert "pip uninstall torchvision torchaudio torchcodec" in words


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"torch": "2.13.0+cpu"},
        {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"},
        {"torch": "2.13.0", "torchvision": "0.28.0", "torchaudio": "2.11.0"},
        {"torchvision": "0.28.0"},
    ],
)
def test_builds_that_belong_together_are_left_alone(monkeypatch, versions):
    installed(monkeypatch, **versions)
    assert build_problem() is None


def test_a_vllm_in_its_own_environment_is_pointed_at(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr(vllm.install, "is_complete", lambda place, extras: False)
    assert "install --vllm" in dict(vllm_problems(RolloutSettings(), {}))["rollout.engine"]
    monkeypatch.setattr(vllm.install, "is_complete", lambda place, extras: True)
    words = dict(vllm_problems(RolloutSettings(), {}))["rollout.engine"]
    assert f"{VLLM_ENVIRONMENT} has it; start the run from there" in words
    assert ".venv-vllm/bin/python launch.py" in words
