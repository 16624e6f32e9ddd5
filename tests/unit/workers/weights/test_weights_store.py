"""Versions in a folder: what a reader gets, what it is told when it is gone, what becomes of storage."""

import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from protocol.errors import BeingWritten, RunError, WeightsError
from workers.weights import file_segment
from workers.weights import store as store_module
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VersionStore
from workers.weights.tensors import layout_of, publish, read, write_whole


@pytest.fixture
def tensors():
    wide = torch.randn(CHUNK_BYTES // 4, 3)  # three chunks of its own
    return {"half": torch.randn(7).bfloat16(), "a": torch.randn(3, 5), "wide": wide, "one": torch.tensor(2.0)}


@pytest.fixture
def store(tmp_path):
    store = VersionStore(tmp_path / "versions")
    yield store
    store.close()


def names(store):
    return sorted(path.name for path in store.directory.iterdir() if path.name != "lock")


def test_a_reader_gets_what_was_published_and_so_does_any_reader_of_safetensors(store, tensors):
    published = publish(store, 3, tensors)
    for found in (read(published.location, published.digest), load_file(published.location)):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert published.location == str(store.directory / "v3.safetensors")
    assert published.size_bytes == os.stat(published.location).st_size
    assert names(store) == ["v3.safetensors"]


def test_the_conversion_happens_on_the_way_in(store, tensors):
    published = publish(store, 0, tensors | {"steps": torch.tensor(3)}, dtype=torch.bfloat16)
    found = read(published.location, published.digest)
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(
        tensors, torch.bfloat16
    ) | {"steps": torch.int64}
    assert torch.equal(found["wide"], tensors["wide"].bfloat16())


def test_equal_weights_have_equal_digests_and_others_do_not(store, tensors):
    first = publish(store, 0, tensors)
    store.retire(0)
    assert publish(store, 0, tensors).digest == first.digest
    store.retire(0)
    tensors["wide"][-1, -1] += 1
    assert publish(store, 0, tensors).digest != first.digest


@pytest.mark.parametrize("run", [CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_checksums_are_the_same_however_they_are_shared_among_threads(store, tensors, monkeypatch, run):
    alone = publish(store, 0, tensors)
    store.retire(0)
    monkeypatch.setattr(file_segment, "WRITTEN_RUN", run)
    for module in (file_segment, store_module):
        monkeypatch.setattr(module, "READ_RUN", run)
    assert publish(store, 0, tensors).digest == alone.digest
    assert torch.equal(read(alone.location, alone.digest)["wide"], tensors["wide"])


def test_a_version_that_is_being_written_cannot_be_seen(store, tensors):
    store.begin(layout_of(1, tensors))
    assert store.find(1) is None
    assert store.versions() == []


def test_storage_is_used_again_once_nobody_reads_it(store, tensors):
    first = publish(store, 0, tensors)
    inode = os.stat(first.location).st_ino
    found = read(first.location, first.digest)
    del found
    store.retire(0)
    second = publish(store, 1, tensors)
    assert os.stat(second.location).st_ino == inode
    assert names(store) == ["v1.safetensors"]


def test_a_reader_keeps_what_it_has_and_the_writer_does_not_wait_for_it(store, tensors):
    first = publish(store, 0, tensors)
    found = read(first.location, first.digest)
    kept = found["a"]
    del found  # one tensor is enough to hold the storage
    store.retire(0)
    store.retire(0)
    publish(store, 1, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert torch.equal(kept, tensors["a"])
    with pytest.raises(WeightsError, match="was retired"):
        read(first.location, first.digest)


def test_what_a_reader_writes_stays_its_own(store, tensors):
    published = publish(store, 0, tensors)
    read(published.location, published.digest)["a"].zero_()
    assert torch.equal(read(published.location, published.digest)["a"], tensors["a"])


@pytest.mark.parametrize("size", [0, 5, 5000, -1])
def test_a_truncated_version_is_refused(store, tensors, size):
    published = publish(store, 0, tensors)
    path = Path(published.location)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightsError, match="truncated"):
        read(published.location, published.digest)
    assert store.find(0) is None


@pytest.mark.parametrize("place", [-1, 9, -CHUNK_BYTES * 2])
def test_a_version_with_one_flipped_bit_is_refused(store, tensors, place):
    published = publish(store, 0, tensors)
    content = bytearray(Path(published.location).read_bytes())
    content[place] ^= 1
    Path(published.location).write_bytes(content)
    with pytest.raises(WeightsError, match=f"{published.digest} was published"):
        read(published.location, published.digest)


def test_a_version_is_found_by_a_store_that_did_not_write_it(store, tensors):
    published = publish(store, 2, tensors)
    other = VersionStore(store.directory)
    assert other.find(2) == published
    assert other.versions() == [2]
    other.retire(2)
    assert names(store) == ["v2.safetensors"]  # its owner lives, and retires it itself
    store.close()
    other.retire(2)
    other.close()
    assert names(store) == []


def test_what_a_dead_writer_left_is_removed(store, tensors):
    publish(store, 0, tensors)
    segment = store.begin(layout_of(1, tensors))
    store.retire(0)
    other = VersionStore(store.directory)
    other.clean()
    assert len(names(store)) == 2  # the writer lives
    segment.close()
    store.close()
    other.clean()
    other.close()
    assert names(store) == []


@pytest.mark.parametrize("has_spare", [False, True])
def test_a_version_that_another_process_is_writing_is_left_to_it(store, tensors, has_spare):
    """Also where storage is at hand: it would take the name of the other's file, which is never finished."""
    other = VersionStore(store.directory)
    if has_spare:
        publish(other, 4, tensors)
        other.retire(4)
    segment = store.begin(layout_of(5, tensors))
    with pytest.raises(BeingWritten, match=r"Version 5 is being written to .* by another process"):
        other.begin(layout_of(5, tensors))
    assert len(names(store)) == 1 + has_spare  # which is kept for another version
    write_whole(store, segment, tensors)
    published = store.seal(segment)
    assert torch.equal(read(published.location, published.digest)["wide"], tensors["wide"])
    assert other.find(5) == published
    other.close()


def test_a_version_that_is_published_again_takes_no_more_room(store, tensors):
    for _ in range(2):
        publish(store, 5, tensors)
    open_files = len(os.listdir("/proc/self/fd"))
    publish(store, 5, tensors)
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert names(store) == ["v5.safetensors"]


def test_storage_of_another_size_is_not_kept(store, tensors):
    publish(store, 0, tensors)
    store.retire(0)
    publish(store, 1, {"small": torch.zeros(3)})
    assert names(store) == ["v1.safetensors"]


def test_a_folder_that_cannot_be_made_ends_the_run(tmp_path):
    (tmp_path / "versions").write_text("a file in the way")
    with pytest.raises(RunError, match=r"set `weights\.directory`"):
        VersionStore(tmp_path / "versions")


@pytest.mark.parametrize("has_call", [True, False])
def test_a_version_that_is_begun_has_all_its_room(store, tensors, monkeypatch, has_call):
    """Also where the system has no call for it, as macOS: a mapping into a hole of a full disk is a crash."""
    if not has_call:
        monkeypatch.delattr(os, "posix_fallocate")
    layout = layout_of(4, {"large": torch.zeros(700_000), **tensors})
    segment = store.begin(layout)
    found = os.stat(segment.path)
    assert found.st_size == layout.file_bytes
    assert 512 * found.st_blocks >= found.st_size


@pytest.mark.parametrize("has_call", [True, False])
def test_a_version_without_room_ends_the_run_in_words(store, tensors, monkeypatch, has_call):
    if not has_call:
        monkeypatch.delattr(os, "posix_fallocate")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RunError, match=r"Version 4 of 3,1.* could not be published"):
            store.begin(layout_of(4, tensors))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(store) == []
