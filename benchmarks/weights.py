"""How fast a version gets from the trainer to its readers: `python -m benchmarks.weights [--mb 10 100]`.

Every figure stands beside memcpy of the same tensors, or between hosts beside raw ZeroMQ from one sender to
as many readers (benchmarks/raw_zeromq.py), measured in turn with it in the same run; medians of the rounds.
"Hosts" are folders and processes of this machine, over tcp loopback: a version for N readers is N times its
bytes through the same few cores, for raw ZeroMQ as for us, with relays or without. So "GB/s" is of all
readers together, and processor time, which other jobs disturb least, is compared too. Versions travel whole;
what deltas save, benchmarks.weight_deltas and benchmarks.slow_link print.
"""

import argparse
import asyncio
import logging
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import psutil
import torch

from benchmarks.raw_zeromq import WINDOW, RawZeroMQ, cpu_s
from protocol.segments import SHARED_MEMORY
from workers.weights import manifest
from workers.weights.address import Announced
from workers.weights.exchange_process import WeightsExchangeProcess
from workers.weights.store import PublishedFile, VersionStore
from workers.weights.tensors import publish, read

TENSOR_BYTES = 8 << 20
ROW = 1024  # items: as in layers, so that sizes are multiples of a cache line
FAN_OUT = 2
COUNTS = (1, 4, 16)  # readers
SMALL_ITEMS = 512  # of a tensor, where the fixed cost of a version is asked for
UNCHECKED = "0" * manifest.DIGEST_CHARS
ROOM = 0.6  # of the memory that is free, for what one row holds


def weights_of(mb: int) -> dict[str, torch.Tensor]:
    """That many megabytes in tensors of a size that layers have."""
    count = max(1, (mb << 20) // TENSOR_BYTES)
    rows, more = divmod((mb << 20) // 4 // ROW, count)
    return {f"w{index}": torch.randn(rows + (index < more), ROW) for index in range(count)}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# -- one host -----------------------------------------------------------------------------------------------


class Took(NamedTuple):
    """One call, by the clock and by the time of processors."""

    wall_s: float
    cpu_s: float


def timed(call: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


class Local:
    """Versions of the same tensors on one host, one after the other."""

    def __init__(self, store: VersionStore, tensors: dict[str, torch.Tensor]) -> None:
        self._store, self._tensors = store, tensors
        self._copied = {name: tensor.clone() for name, tensor in tensors.items()}
        self._version = 0
        self.published: PublishedFile

    def memcpy(self) -> None:
        for name, tensor in self._tensors.items():
            self._copied[name].copy_(tensor)

    def publish(self) -> None:
        self.published = publish(self._store, self._version, self._tensors)

    def publish_unchecked(self) -> None:
        with patch.object(manifest, "chunk_digest", lambda chunk: UNCHECKED):
            publish(self._store, self._version, self._tensors)

    def retire(self) -> None:
        self._store.retire(self._version)
        self._version += 1


def local(store: VersionStore, mb: int, rounds: int) -> None:
    """Publish, and readers of the same host."""
    side = Local(store, weights_of(mb))
    rows: dict[str, list[Took]] = {}
    first: dict[str, Took] = {}
    for number in range(rounds + 2):
        # in turn first: who comes second finds the tensors in the cache, if they fit
        before = timed(side.memcpy) if number % 2 else None
        took = {"publish to visible": timed(side.publish)}
        took["memcpy"] = before or timed(side.memcpy)
        for count in COUNTS:
            label = f"{count:2} local readers, mapped and verified"
            took[label] = timed(lambda count=count: read_side_by_side(side.published, count))
        side.retire()
        took["the same without checksums"] = timed(side.publish_unchecked)
        side.retire()
        first = first or took
        if number >= 2:  # the first ones touch their pages for the first time
            for label, one in took.items():
                rows.setdefault(label, []).append(one)
    copies = rows.pop("memcpy")
    copy_s = median(copy.wall_s for copy in copies)
    print(f"{mb:5} MB  memcpy {copy_s * 1e3:8.1f} ms  {mb / 1024 / copy_s:6.2f} GB/s")
    for label, each in rows.items():
        tell_local(label, each, copies, mb)
    tell_local("the first, into new storage", [first["publish to visible"]], [first["memcpy"]], mb)


def tell_local(label: str, each: list[Took], copies: list[Took], mb: int) -> None:
    count = int(label.split()[0]) if "readers" in label else 1
    took = median(one.wall_s for one in each)
    wall = median(count * copy.wall_s / one.wall_s for copy, one in zip(copies, each, strict=True))
    cpu = count * median(copy.cpu_s for copy in copies) / median(one.cpu_s for one in each)
    print(f"{label:>45} {took * 1e3:8.1f} ms  {count * mb / 1024 / took:6.2f} GB/s"
          f"  {wall:5.2f} of memcpy, {cpu:5.2f} by processor time")  # fmt: skip


def fixed_cost(store: VersionStore, count: int, rounds: int) -> None:
    """What a version of next to no bytes takes, in so many tensors."""
    side = Local(store, {f"model.layers.{place}.weight": torch.randn(SMALL_ITEMS) for place in range(count)})
    took = []
    for _ in range(rounds):
        took.append(timed(side.publish))
        side.retire()
    size = count * SMALL_ITEMS * 4 / 1e6
    print(f"a version of {size:.2f} MB in {count:3} tensors: "
          f"{median(one.wall_s for one in took) * 1e3:6.2f} ms, shortest {min(took).wall_s * 1e3:.2f} ms; "
          f"{median(one.cpu_s for one in took) * 1e3:.2f} ms of processor time")  # fmt: skip


def read_side_by_side(published: PublishedFile, count: int) -> float:
    threads = [threading.Thread(target=read, args=published[:2]) for _ in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


# -- between hosts ------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One size, number of readers, and way to them."""

    mb: int
    count: int
    is_relayed: bool

    def tell(self, rounds: list["Round"]) -> None:
        """Print what was measured."""
        took = median(round.took_s for round in rounds)
        wall = median(round.raw_s / round.took_s for round in rounds)
        cpu = sum(round.raw_cpu_s for round in rounds) / sum(round.cpu_s for round in rounds)
        sent = median(round.sent for round in rounds)
        print(f"{self.mb:5} MB  {self.count:2} remote {'with relays' if self.is_relayed else 'from one   '}"
              f" {took * 1e3:9.1f} ms  {self.count * self.mb / 1024 / took:6.2f} GB/s"
              f"  {wall:5.2f} of raw ZeroMQ, {cpu:5.2f} by processor time"
              f"  trainer sent {sent:4.1f} versions", flush=True)  # fmt: skip


class Round(NamedTuple):
    """One measurement of a row, and of raw ZeroMQ just before."""

    took_s: float
    cpu_s: float
    raw_s: float
    raw_cpu_s: float
    sent: float  # by the trainer, in versions


class Hosts:
    """A trainer's agent and those of its readers."""

    def __init__(self, folder: Path, mb: int, count: int) -> None:
        self.store = VersionStore(folder / "remote")
        self._tensors = weights_of(mb)
        # all versions here have the same weights, which a delta would tell in a few bytes
        window = {
            "deltas": False,
            "address": Announced("127.0.0.1", "in a benchmark"),
            "window_bytes": WINDOW << 20,
        }
        self._trainer = WeightsExchangeProcess(self.store.directory, is_writers=True, **window)
        self._readers = [WeightsExchangeProcess(folder / f"reader{n}", **window) for n in range(count)]
        self._version = 0
        self.first = publish(self.store, 0, self._tensors)

    async def start(self) -> None:
        self._source, *self._endpoints = [await each.start() for each in (self._trainer, *self._readers)]
        self._processes = [
            p for p in psutil.Process().children() if "workers.weights.exchange" in p.cmdline()
        ]

    async def fetch(self, count: int, is_relayed: bool) -> tuple[float, float, float]:
        """Have so many readers pull a version: seconds, processor seconds, versions that the trainer sent."""
        self._version += 1
        published, sent = publish(self.store, self._version, self._tensors), self._trainer.served_bytes
        cpu = cpu_s(self._processes)
        began = time.perf_counter()
        await asyncio.gather(
            *(
                reader.fetch(self._version, published.digest, self._sources(place if is_relayed else 0))
                for place, reader in enumerate(self._readers[:count])
            )
        )
        took, cpu = time.perf_counter() - began, cpu_s(self._processes) - cpu
        for each in (self._trainer, *self._readers):
            await each.retire(self._version)
        self.store.retire(self._version)
        return took, cpu, (self._trainer.served_bytes - sent) / published.size_bytes

    async def close(self) -> None:
        for each in (*self._readers, self._trainer):
            await each.close()
        self.store.close()

    def _sources(self, place: int) -> list[str]:
        """Of a reader in a tree of FAN_OUT, nearest first."""
        above = []
        while place >= FAN_OUT:
            place = place // FAN_OUT - 1
            above.append(self._endpoints[place])
        return [*above, self._source]


async def remote(folder: Path, mb: int, rounds: int) -> None:
    """Readers of other hosts, with the trainer as the only source and through each other."""
    free_mb = psutil.virtual_memory().available >> 20
    counts = [count for count in COUNTS if (count + 4) * mb < ROOM * free_mb]
    for count in sorted({*COUNTS} - {*counts}):
        print(
            f"{mb:5} MB  {count:2} remote: not run, it would hold {(count + 4) * mb:,} of {free_mb:,} MB free"
        )
    hosts = Hosts(folder, mb, max(counts))
    await hosts.start()
    raw = RawZeroMQ(hosts.first.location, max(counts))
    rows: dict[Row, list[Round]] = {}
    await hosts.fetch(max(counts), is_relayed=True)  # pages are touched for the first time, modules imported
    raw.send(mb, max(counts))
    for count in counts * rounds:
        for is_relayed in (False, True) if count > 1 else (False,):
            raw_cpu_s = raw.cpu_s()
            raw_s = seconds(lambda count=count: raw.send(mb, count))
            raw_cpu_s = raw.cpu_s() - raw_cpu_s
            took_s, spent_s, sent = await hosts.fetch(count, is_relayed)
            measured = Round(took_s, spent_s, raw_s, raw_cpu_s, sent)
            rows.setdefault(Row(mb, count, is_relayed), []).append(measured)
    for row, measured in rows.items():
        row.tell(measured)
    raw.close()
    await hosts.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--remote-mb", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=7, help="at 10 MB; fewer for more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, load {os.getloadavg()[0]:.1f}")
    base = SHARED_MEMORY if SHARED_MEMORY.exists() else None
    folder = Path(tempfile.mkdtemp(prefix="staleflow-benchmark-", dir=base))
    store = VersionStore(folder / "trainer")
    logging.getLogger("workers").setLevel(logging.ERROR)  # they warn of a loopback address
    try:
        for count in (1, 300):
            fixed_cost(store, count, 20 * options.rounds)
        for mb in options.mb:
            local(store, mb, options.rounds)
        store.close()
        for mb in options.remote_mb:
            asyncio.run(remote(folder / str(mb), mb, max(1, options.rounds * 30 // max(mb, 40))))
            shutil.rmtree(folder / str(mb))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
