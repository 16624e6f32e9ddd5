"""Every byte of a version is copied from its place in a tensor, whatever ranges it is copied in."""

import mmap
import random

import pytest
import torch

from workers.weights import copying
from workers.weights import store as store_module
from workers.weights.copying import FlatCopy
from workers.weights.manifest import CHUNK_BYTES, lay_out
from workers.weights.store import VersionStore
from workers.weights.tensors import DTYPES, NAMES, layout_of, publish, read, views

SIZES = (1, 3, 0, 40, 7, 1000, 64, 65, 63, 5, 0, 333)
CONVERTED = {torch.float32: torch.bfloat16}


def drawn(seed, to):
    """Tensors of many dtypes and sizes, what they become, and a layout of that."""
    chosen = random.Random(seed)
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]
    tensors = {
        f"w{place}.{size}": (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 50).to(
            chosen.choice(kinds)
        )
        for place, size in enumerate(SIZES * 3)
    }
    become = {name: tensor.to(to.get(tensor.dtype, tensor.dtype)) for name, tensor in tensors.items()}
    layout = lay_out(3, {name: (NAMES[t.dtype], tuple(t.shape)) for name, t in become.items()})
    return tensors, become, layout


@pytest.mark.parametrize("to", [{}, CONVERTED], ids=["as they are", "converted"])
@pytest.mark.parametrize("seed", range(6))
def test_each_range_is_written_and_nothing_beside_it(seed, to, monkeypatch):
    monkeypatch.setattr(copying, "SERIAL_ITEMS", 64)  # so that some are small and some are not
    tensors, become, layout = drawn(seed, to)
    mapped = mmap.mmap(-1, layout.file_bytes)
    sources = [tensors[name] for name in layout.entries]
    copy, data = FlatCopy(mapped, layout, sources, dtypes=DTYPES), memoryview(mapped)[layout.header_bytes :]
    ends = sorted(8 * random.Random(seed).randrange(layout.data_bytes // 8) for _ in range(20))
    ranges = list(zip([0, *ends], [*ends, layout.data_bytes], strict=True))
    random.Random(seed).shuffle(ranges)
    for begin, end in ranges:
        before = bytes(data)
        copy(begin, end)
        assert bytes(data[:begin]) == before[:begin]
        assert bytes(data[end:]) == before[end:]
    for name, found in views(mapped, layout).items():
        assert torch.equal(found, become[name]), name
    assert not any(mapped[: layout.header_bytes])


def test_many_small_tensors_and_one_of_several_chunks_arrive(tmp_path):
    tensors = {f"norm{place}": torch.nn.Parameter(torch.randn(place, 2)) for place in range(50)}
    tensors |= {"wide": torch.randn(CHUNK_BYTES, 3), "turned": torch.randn(9, 5).T}
    store = VersionStore(tmp_path / "versions")
    for without in ("", "turned"):  # with a tensor that does not lie in one row, each is copied by itself
        some = {name: tensor for name, tensor in tensors.items() if name != without}
        published = publish(store, len(some), some)
        found = read(published.location, published.digest)
        assert all(torch.equal(found[name], some[name]) for name in some)
    store.close()


def test_versions_of_one_model_share_what_is_known_of_its_tensors():
    tensors = {"w": torch.ones(3), "v": torch.ones(2, 2)}
    first, second = layout_of(1, tensors), layout_of(2, tensors)
    assert first.entries is second.entries
    assert layout_of(2, tensors | {"v": torch.ones(4)}).entries != first.entries


@pytest.mark.parametrize("chunk", [0, 3, 7])
def test_a_chunk_that_cannot_be_copied_ends_the_version_whichever_thread_has_it(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(store_module, "READ_RUN", CHUNK_BYTES)  # so that several threads copy
    store = VersionStore(tmp_path / "versions")
    segment, copied = store.begin(layout_of(0, {"w": torch.zeros(8 * CHUNK_BYTES, dtype=torch.uint8)})), []

    def copy(begin, end):
        if begin == chunk * CHUNK_BYTES:
            raise MemoryError("in the middle")
        copied.append((begin, end))

    with pytest.raises(MemoryError, match="in the middle"):
        store.fill(segment, copy)
    assert len(copied) == len(set(copied)) <= 7
    store.discard(segment)
    store.close()
