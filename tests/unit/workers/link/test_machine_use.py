"""What a worker says of its memory, and that it says so now and then in place of a beat."""

import importlib
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from protocol.messages import Beat, MachineUse
from workers.link.link import MEASURE_S, Link
from workers.link.machine_use import machine_use


def test_the_memory_of_a_process_is_that_of_all_below_it():
    held = "import sys; held = bytearray(64 << 20); print('x', flush=True); sys.stdin.read()"
    before, pipe = machine_use(), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", held], stdin=pipe, stdout=pipe) as child:
        assert child.stdout.read(1) == b"x"
        during = machine_use()
        child.communicate()
    assert before.resident_mb > 0
    assert during.resident_mb >= before.resident_mb + 60


def test_a_worker_without_a_device_says_so(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    use = machine_use()
    assert (use.device, use.device_mb, use.device_total_mb) == ("cpu", 0, 0)


def test_a_device_that_torch_uses_is_told_with_its_memory(monkeypatch):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        mem_get_info=lambda: (10 << 20, 80 << 20),
        get_device_name=lambda: "NVIDIA H200",
        current_device=lambda: 1,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __spec__=None))
    use = machine_use()
    assert (use.device, use.device_mb, use.device_total_mb) == ("GPU 7: NVIDIA H200", 70, 80)
    cuda.is_initialized = lambda: False
    assert machine_use().device == "cpu"


def test_while_a_thread_imports_torch_there_is_no_device_yet(monkeypatch):
    half = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))  # and no `cuda`
    monkeypatch.setitem(sys.modules, "torch", half)
    assert machine_use().device == "cpu"


def test_a_module_that_is_being_imported_is_known_as_such(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text(
        "import sys\nseen = getattr(sys.modules[__name__].__spec__, '_initializing', False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    half_there = importlib.import_module("half_there")
    assert half_there.seen
    assert not getattr(half_there.__spec__, "_initializing", False)


@pytest.mark.parametrize("failing", ["measuring", "sending"])
async def test_beats_go_on_where_one_of_them_fails(monkeypatch, failing):
    def fail(*_):
        raise AttributeError("partially initialized module 'torch' has no attribute 'cuda'")

    link, sent = Link("tcp://127.0.0.1:1", "rollout"), []
    link._connection.send = fail if failing == "sending" else sent.append
    link._beat_s, link.lease_s = 100.0, 1_000.0
    if failing == "measuring":
        monkeypatch.setattr("workers.link.link.machine_use", fail)
    try:
        with suppress(AttributeError):
            link._beat()
        assert link._timer is not None
        assert not link._timer.cancelled()
    finally:
        await link.aclose()
    assert [type(one) for one in sent] == ([Beat] if failing == "measuring" else [])


async def test_the_first_beat_and_one_in_a_while_says_what_the_process_takes():
    link, sent = Link("tcp://127.0.0.1:1", "reward"), []
    link._connection.send = sent.append
    link._beat_s, link.lease_s = 100.0, 1_000.0
    try:
        for _ in range(3):
            link._beat()
            link._timer.cancel()
            link._beaten_at -= link._beat_s  # so much later both are silent
            link._said_at = link._heard_at = link._beaten_at
        link._measured_at -= MEASURE_S
        link._beat()
    finally:
        await link.aclose()
    assert [type(one) for one in sent] == [MachineUse, Beat, Beat, MachineUse]
