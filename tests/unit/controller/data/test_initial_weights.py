"""Weights that were replaced are named; what is gone, or was never known, is not."""

import pytest

from controller.config.models import Config
from controller.data.initial_weights import initial_weights, replaced_weights


@pytest.fixture
def config(tmp_path) -> Config:
    (tmp_path / "a.safetensors").write_bytes(b"one")
    (tmp_path / "b.safetensors").write_bytes(b"two")
    keys = {"data": {"path": "rows.jsonl"}, "reward": {"function": "task.py:reward"}}
    return Config.model_validate({**keys, "model": {"path": str(tmp_path)}})


def test_replaced_weights_are_named_and_the_same_bytes_are_not(config, tmp_path):
    was = initial_weights(config)
    assert [*was] == ["a.safetensors", "b.safetensors"]
    (tmp_path / "a.safetensors").write_bytes(b"one")
    assert replaced_weights(was, config) is None
    (tmp_path / "b.safetensors").write_bytes(b"tow")
    assert "b.safetensors has other content in the same 3 bytes" in (replaced_weights(was, config) or "")
    (tmp_path / "b.safetensors").unlink()
    assert replaced_weights(was, config) is None


def test_a_run_of_a_release_that_knew_no_weights_and_a_made_model_are_not_refused(config):
    assert replaced_weights({}, config) is None
    assert replaced_weights({"a.safetensors": "?"}, config) is None
    made = config.model.model_copy(update={"factory": "task.py:make"})
    assert initial_weights(config.model_copy(update={"model": made})) == {}
