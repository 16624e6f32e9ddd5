"""The folder from which vLLM's own processes read new weights."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from protocol import segments
from workers.engines.vllm import weights

TENSORS = {"w": torch.arange(6.0)}


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """A folder in place of shared memory."""
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setattr(segments, "SHARED_MEMORY", place)
    return place


def test_a_folder_that_is_read_is_not_swept_and_is_gone_afterwards(memory):
    def read(method, weights_path):
        segments.sweep()
        assert load_file(f"{weights_path}/model.safetensors")["w"].tolist() == TENSORS["w"].tolist()
        assert weights_path.startswith(str(memory))
        found.append(method)

    found = []
    weights.reload(read, TENSORS, is_elsewhere=True)
    assert found == ["replace_weights"]
    assert not list(memory.iterdir())


def test_what_a_killed_worker_leaves_in_shared_memory_is_swept(memory):
    if (child := os.fork()) == 0:
        weights.reload(lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL), TENSORS, is_elsewhere=True)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(memory.iterdir())) == 1
    segments.sweep()
    assert not list(memory.iterdir())


def test_where_shared_memory_has_no_room_the_weights_go_to_a_disk(memory, monkeypatch):
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(segments.os, "statvfs", lambda _: full)
    places = []
    weights.reload(lambda _, weights_path: places.append(weights_path), TENSORS, is_elsewhere=True)
    assert not places[0].startswith(str(memory))
    assert not os.path.exists(places[0])
