"""Images in run.db are compressed, and those that are no images say so."""

import pytest

from controller.durability.image import packed
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack, unpack
from protocol.errors import RunError
from tests.unit.controller.durability.image.test_freezer import some_core


def test_what_was_packed_is_unpacked_and_takes_less():
    image = Freezer().freeze(some_core())
    assert unpack(pack(image)) == image
    assert 2 * len(pack(image)) < len(image)


def test_what_grows_beyond_all_measure_is_refused(monkeypatch):
    monkeypatch.setattr(packed, "MOST_BYTES", 1 << 20)
    assert unpack(pack(bytes(1 << 20))) == bytes(1 << 20)
    with pytest.raises(RunError, match=r"cannot be read: it has no end within \d+ bytes"):
        unpack(pack(bytes(8 << 20)))


@pytest.mark.parametrize("harmed", [b"", b"no image", pack(b"image")[:-1]])
def test_what_is_no_packed_image_is_refused_in_words(harmed):
    with pytest.raises(RunError, match="cannot be read"):
        unpack(harmed)
