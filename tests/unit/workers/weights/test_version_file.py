"""A whole version of this host, open for its chunks; what is not whole is not opened."""

from pathlib import Path

import pytest
import torch

from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VersionStore
from workers.weights.tensors import publish
from workers.weights.version_file import VersionFile


@pytest.fixture
def published(tmp_path):
    store = VersionStore(tmp_path)
    yield publish(store, 5, {"w": torch.arange(CHUNK_BYTES // 4 + 10, dtype=torch.int32)})
    store.close()


def test_header_and_chunks_are_the_file_and_nothing_lies_behind_its_end(published):
    content = Path(published.location).read_bytes()
    opened = VersionFile.open(Path(published.location))
    assert opened.policy_version == 5
    assert b"".join([opened.header, opened.chunk(0), opened.chunk(1)]) == content
    assert len(opened.chunk(1)) == 40
    assert len(opened.chunk(2)) == 0


def test_a_chunk_that_was_damaged_after_it_was_published_is_not_sound(published):
    with Path(published.location).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    opened = VersionFile.open(Path(published.location))
    assert bytes(opened.sound_chunk(0)) == bytes(opened.chunk(0))
    assert len(opened.chunk(1)) == 40
    assert len(opened.sound_chunk(1)) == len(opened.sound_chunk(2)) == 0


def test_what_is_missing_cut_off_or_garbage_is_not_opened(published, tmp_path):
    content = Path(published.location).read_bytes()
    for name, bad in (
        ("short", content[:-1]),
        ("long", content + b"!"),
        ("garbage", b"x" * 100),
        ("empty", b""),
    ):
        (tmp_path / name).write_bytes(bad)
        assert VersionFile.open(tmp_path / name) is None, name
    assert VersionFile.open(tmp_path / "missing") is None
