"""What `launch.py doctor` says of a machine: each lack by name, with what to do about it."""

import os
import resource
import sqlite3
import subprocess
import sys

import pytest

import install
from controller.check import machine
from controller.compiled import finder

ROOT = install.ROOT


def by_part(found):
    return {reading.part: reading for reading in found}


def test_this_machine_is_told_part_by_part(tmp_path, monkeypatch):
    answer = {"torch": "2.13.0", "devices": [], "torch_problem": "", "sandbox_problem": ""}
    monkeypatch.setattr(machine, "_ask_a_worker", lambda: (answer, ""))
    found = by_part(machine.readings(tmp_path / "runs"))
    assert set(found) >= {"python", "packages", "torch", "devices", "cores", "memory", "disk", "network"}
    assert found["disk"].level != "error"
    assert not list(tmp_path.iterdir())


def test_a_core_that_is_switched_off_is_not_advised_to_be_compiled(tmp_path, monkeypatch):
    finder.found.cache_clear()
    monkeypatch.setattr(finder, "HOME", tmp_path)
    monkeypatch.setenv(finder.SWITCH, "0")
    (reading,) = machine._compiled_core()
    assert f"{finder.SWITCH} is 0" in reading.text
    assert "compile`" not in reading.text
    monkeypatch.setenv(finder.SWITCH, str(tmp_path / "nothing"))
    finder.found.cache_clear()
    (reading,) = machine._compiled_core()
    assert "compile`" in reading.text
    finder.found.cache_clear()


@pytest.mark.parametrize(
    ("forbidden", "was_installed", "level"), [("", False, "note"), ("1", False, "error"), ("", True, "error")]
)
def test_on_a_fresh_machine_what_the_first_run_installs_is_no_error_unless_it_will_not(
    tmp_path, monkeypatch, forbidden, was_installed, level
):
    monkeypatch.setattr(install, "is_complete", lambda environment, extras: was_installed)
    answer = {"torch": "", "devices": [], "torch_problem": "No module named 'torch'", "sandbox_problem": ""}
    monkeypatch.setattr(machine, "_ask_a_worker", lambda: (answer, ""))
    monkeypatch.setattr(install, "missing", lambda extras: ["torch"] if "workers" in extras else [])
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", forbidden)
    found = by_part(machine.readings(tmp_path / "runs"))
    assert found["packages"].level == level
    assert "torch" in found["packages"].text
    assert found["devices"].level == "note"
    assert "torch" not in found


def test_what_devices_answer_is_told_with_a_remedy(monkeypatch):
    well = {"name": "H100", "total_gb": 80.0, "free_gb": 79.0, "has_bf16": True, "problem": ""}
    devices = [well, {**well, "free_gb": 3.0}, {**well, "has_bf16": False}, {**well, "problem": "ECC error"}]
    found = list(machine._devices(devices))
    assert [reading.level for reading in found] == ["ok", "note", "note", "error"]
    assert "nvidia-smi" in found[1].text
    assert "float32" in found[2].text
    assert "ECC error. Leave it out: CUDA_VISIBLE_DEVICES" in found[3].text


def test_a_gpu_that_torch_does_not_see_is_an_error(monkeypatch):
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    (reading,) = machine._devices([])
    assert reading.level == "error"
    assert "nvidia-smi" in reading.text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with code -11"),
        ("raise SystemExit('the driver is gone')", "the driver is gone"),
        ("import time; time.sleep(60)", "a driver that hangs"),
    ],
)
def test_a_driver_that_crashes_or_hangs_is_told_and_takes_nothing_with_it(monkeypatch, program, words):
    run = subprocess.run

    def instead(command, *, timeout, **options):
        return run([sys.executable, "-c", program], timeout=0.5 if "hangs" in words else timeout, **options)

    monkeypatch.setattr(subprocess, "run", instead)
    (reading,) = machine._devices_and_sandbox()
    assert reading.level == "error"
    assert words in reading.text


def test_a_container_s_limits_count(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("2000000000\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (cores,), (memory,) = machine._cores(), machine._memory()
    assert cores.level == memory.level == "note"
    assert cores.text.startswith("0.5 of ")
    assert memory.text.startswith("2.0 GB: the container's limit")


def test_a_disk_of_the_network_is_noted(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path.resolve()} nfs4 rw 0 0\n")
    monkeypatch.setattr(machine, "MOUNTS", mounts)
    (reading,) = machine._disk(tmp_path / "not" / "made")
    assert reading.level == "note"
    assert "(nfs4): SQLite's journal is not safe" in reading.text


def test_a_folder_where_no_journal_can_be_kept_is_an_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise sqlite3.OperationalError("locking protocol")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    (reading,) = machine._disk(tmp_path)
    assert reading.level == "error"
    assert "locking protocol. Set run.dir" in reading.text


def test_few_descriptors_are_noted_with_the_command_that_raises_them():
    script = "from controller.check import machine; print(*machine._descriptors())"

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))

    done = subprocess.run([sys.executable, "-c", script], preexec_fn=lower, capture_output=True, text=True,
                          cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
    assert "level='note'" in done.stdout, done.stderr
    assert "ulimit -Hn 65536" in done.stdout


def test_small_shared_memory_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    (reading,) = machine._shared_memory()
    assert reading.level == "note"
    assert "weights.directory" in reading.text
