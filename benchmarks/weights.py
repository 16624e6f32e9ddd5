"""How fast a version gets from the trainer to its readers: `python -m benchmarks.weights [--mb 10 100]`.

Every figure stands beside memcpy of the same bytes and, between hosts, raw ZeroMQ (one DEALER, one ROUTER,
the same chunks and window, no checksum, no file), measured in turn with it in the same run; medians of the
rounds. "Hosts" are folders and processes of this machine, over tcp loopback: they share its cores, so what
several of them reach together is bounded by those, not by a network.
"""

import argparse
import asyncio
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import zmq

from protocol.segments import SHARED_MEMORY
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.neighbour import Neighbour
from workers.weights.store import Published, Store
from workers.weights.tensors import publish, read

WINDOW = 16  # chunks
TENSOR_BYTES = 8 << 20
FAN_OUT = 2


def weights_of(mb: int) -> dict[str, torch.Tensor]:
    """That many megabytes in tensors of a size that layers have."""
    count = max(1, (mb << 20) // TENSOR_BYTES)
    return {f"w{index}": torch.randn((mb << 20) // count // 4) for index in range(count)}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def memcpy_s(mb: int) -> float:
    """One thread, from touched pages to touched pages."""
    source, target = torch.ones(mb << 20, dtype=torch.uint8), torch.zeros(mb << 20, dtype=torch.uint8)
    target.copy_(source)
    return min(seconds(lambda: target.copy_(source)) for _ in range(2))


def raw_zeromq_s(mb: int) -> float:
    """The same bytes through ZeroMQ alone."""
    context, chunk = zmq.Context(), bytes(CHUNK_BYTES)
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (server, client):
        socket.setsockopt(zmq.SNDHWM, 2 * WINDOW)
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")

    def serve() -> None:
        for _ in range(mb):
            name, word = server.recv_multipart()
            server.send_multipart([name, word, chunk], copy=False)

    thread = threading.Thread(target=serve)
    thread.start()
    target = memoryview(bytearray(mb << 20))
    began = time.perf_counter()
    for _ in range(min(WINDOW, mb)):
        client.send(b"x")
    for index in range(mb):
        _, data = client.recv_multipart(copy=False)
        target[index << 20 : (index + 1) << 20] = data.buffer
        if index + WINDOW < mb:
            client.send(b"x")
    took = time.perf_counter() - began
    thread.join()
    context.destroy(0)
    return took


def local(store: Store, mb: int, rounds: int) -> None:
    """Publish, and readers of the same host."""
    tensors, copies, publishes, reads = weights_of(mb), [], [], {1: [], 4: [], 16: []}
    for version in range(rounds + 2):
        copy_s = memcpy_s(mb)
        began = time.perf_counter()
        published = publish(store, version, tensors)
        publish_s = time.perf_counter() - began
        readings = {count: read_side_by_side(published, count) for count in reads}
        store.retire(version)
        if version >= 2:  # the first ones touch their pages for the first time
            copies.append(copy_s)
            publishes.append(publish_s)
            for count, took in readings.items():
                reads[count].append(took)
    copy_s, publish_s = median(copies), median(publishes)
    ratio = median([a / b for a, b in zip(copies, publishes, strict=True)])
    print(f"{mb:5} MB  publish to visible {publish_s * 1e3:8.1f} ms  {mb / 1024 / publish_s:6.2f} GB/s"
          f"  {ratio:5.2f} of memcpy ({mb / 1024 / copy_s:.2f} GB/s)")  # fmt: skip
    for count, took in reads.items():
        each = count * mb / 1024 / median(took)
        print(f"{'':9} {count:2} local readers, mapped and verified {median(took) * 1e3:8.1f} ms"
              f"  {each:6.2f} GB/s together  {median(took) / copy_s:5.2f} times memcpy's time")  # fmt: skip


def read_side_by_side(published: Published, count: int) -> float:
    threads = [threading.Thread(target=read, args=published[:2]) for _ in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


async def remote(store: Store, folder: Path, mb: int, rounds: int) -> None:
    """Readers of other hosts, with the trainer as the only source and through each other."""
    tensors = weights_of(mb)
    trainer = Neighbour(store.directory, host="127.0.0.1", window_bytes=WINDOW << 20, is_writers=True)
    readers = [Neighbour(folder / f"r{n}", host="127.0.0.1", window_bytes=WINDOW << 20) for n in range(16)]
    source, *endpoints = [await agent.start() for agent in (trainer, *readers)]
    version = 1000
    for count, is_relayed in ((1, False), (4, False), (4, True), (16, False), (16, True)):
        took, raw, served = [], [], []
        for _ in range(rounds + 1):
            version += 1
            published, before = publish(store, version, tensors), trainer.served_bytes
            raw.append(raw_zeromq_s(mb))
            sources = [path(place, endpoints, source) if is_relayed else [source] for place in range(count)]
            began = time.perf_counter()
            await asyncio.gather(
                *(
                    agent.fetch(version, published.digest, s)
                    for agent, s in zip(readers, sources, strict=False)
                )
            )
            took.append(time.perf_counter() - began)
            for agent in (trainer, *readers):
                await agent.retire(version)
            store.retire(version)
            served.append((trainer.served_bytes - before) / published.size_bytes)
        seen, alone = median(took[1:]), median(raw[1:])
        print(f"{mb:5} MB  {count:2} remote {'with relays' if is_relayed else 'from one   '}"
              f" {seen * 1e3:9.1f} ms  {count * mb / 1024 / seen:6.2f} GB/s together"
              f"  {count * alone / seen:5.2f} of raw ZeroMQ ({mb / 1024 / alone:.2f} GB/s)"
              f"  trainer sent {median(served[1:]):4.1f} versions")  # fmt: skip
    for agent in (*readers, trainer):
        await agent.close()


def path(place: int, endpoints: list[str], source: str) -> list[str]:
    """The sources of a reader in a tree of FAN_OUT, nearest first."""
    above = []
    while place >= FAN_OUT:
        place = place // FAN_OUT - 1
        above.append(endpoints[place])
    return [*above, source]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--remote-mb", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{platform.machine()}, {torch.get_num_threads()} thread, {platform.system()}, load {load}")
    base = SHARED_MEMORY if SHARED_MEMORY.exists() else None
    folder = Path(tempfile.mkdtemp(prefix="staleflow-benchmark-", dir=base))
    store = Store(folder / "trainer")
    try:
        for mb in options.mb:
            local(store, mb, options.rounds)
        for mb in options.remote_mb:
            asyncio.run(remote(store, folder, mb, max(2, options.rounds - 2)))
    finally:
        store.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
