"""Published versions: what a reader gets, and what it is told when it cannot have it."""

import pytest
import torch

from protocol.errors import RunError, WeightsError
from workers import weights


@pytest.fixture
def tensors():
    return {"a": torch.randn(3, 5), "half": torch.randn(7).bfloat16(), "scalar": torch.tensor(2.0)}


def test_a_reader_gets_what_was_published(tmp_path, tensors):
    published = weights.publish(tmp_path / "weights", 3, tensors)
    found = weights.read(published.location, published.digest)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert published.location == str(tmp_path / "weights" / "v3.safetensors")
    assert published.size_bytes == weights.location_of(tmp_path / "weights", 3).stat().st_size
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["v3.safetensors"]


def test_a_reader_keeps_its_mapping_after_the_version_was_retired(tmp_path, tensors):
    published = weights.publish(tmp_path, 0, tensors)
    found = weights.read(published.location, published.digest)
    weights.retire(published.location)
    weights.retire(published.location)
    assert torch.equal(found["a"], tensors["a"])
    with pytest.raises(WeightsError, match="was retired"):
        weights.read(published.location, published.digest)


@pytest.mark.parametrize("size", [0, 5, -1])
def test_a_truncated_version_is_refused(tmp_path, tensors, size):
    published = weights.publish(tmp_path, 0, tensors)
    path = weights.location_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightsError, match=f"has {path.stat().st_size} bytes .* truncated"):
        weights.read(published.location, published.digest)


def test_a_version_with_one_flipped_bit_is_refused(tmp_path, tensors):
    published = weights.publish(tmp_path, 0, tensors)
    path = weights.location_of(tmp_path, 0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"{published.digest} was published"):
        weights.read(published.location, published.digest)


def test_a_version_that_is_there_already_is_what_was_published(tmp_path, tensors):
    first = weights.publish(tmp_path, 2, tensors)
    assert weights.publish(tmp_path, 2, {"a": torch.zeros(3)}) == first
    path = weights.location_of(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:9])  # lost with the power
    again = weights.publish(tmp_path, 2, tensors)
    assert weights.read(again.location, again.digest).keys() == tensors.keys()


def test_what_a_dead_trainer_left_half_written_is_removed(tmp_path, tensors):
    published = weights.publish(tmp_path, 0, tensors)
    (tmp_path / "v1.partial").touch()
    weights.clean(tmp_path)
    assert [str(path) for path in tmp_path.iterdir()] == [published.location]
    weights.clean(tmp_path / "not there")


def test_a_directory_that_cannot_be_written_ends_the_run(tmp_path, tensors):
    (tmp_path / "weights").write_text("a file in the way")
    with pytest.raises(RunError, match="Version 4 could not be published"):
        weights.publish(tmp_path / "weights", 4, tensors)


def test_a_version_that_is_synced_is_the_same_version(tmp_path, tensors):
    plain = weights.publish(tmp_path / "plain", 3, tensors)
    synced = weights.publish(tmp_path / "synced", 3, tensors, is_synced=True)
    assert (synced.digest, synced.size_bytes) == (plain.digest, plain.size_bytes)
