"""What a worker would have on this machine, as `launch.py doctor` asks it."""

import json
import subprocess
import sys

import pytest

import install
from workers.host import machine


def test_it_prints_what_torch_and_the_sandbox_answer():
    done = subprocess.run(
        [sys.executable, "-m", "workers.host.machine"], cwd=install.ROOT, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["torch_problem"] == ""
    assert "built for" in found["torch"]
    assert set(found) == set(machine.Equipment.__annotations__)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA driver initialization failed"), ImportError("libcudart")]
)
def test_a_torch_that_fails_is_told_and_the_sandbox_is_tried_all_the_same(monkeypatch, error):
    def fail():
        raise error

    tried = []

    async def open_nothing():
        tried.append("sandbox")

    monkeypatch.setattr(machine, "_torch", fail)
    monkeypatch.setattr(machine, "_open_and_close", open_nothing)
    found = machine.look()
    assert found["torch_problem"] == f"{type(error).__name__}: {error}"
    assert tried == ["sandbox"]
