"""Time until a version is visible behind a slow cable: `python -m benchmarks.slow_link [--mbit 20]`.

A trainer's versions of a small transformer in bfloat16, which takes a step between them, are pulled by the
exchange of another host through a cable of this process that delays and paces bytes, once as whole chunks and
once as deltas against the version before. Every version is compared bit for bit with what was published; one
is left out on the way, so the next is told by an older one.
"""

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from benchmarks.weight_deltas import trained
from workers.weights.address import Announced
from workers.weights.exchange_process import WeightsExchangeProcess
from workers.weights.store import VersionStore
from workers.weights.tensors import publish, read

RATES = (1e-6, 1e-5)
PIECE = 4096  # bytes that the cable takes at once
HOST = "127.0.0.1"


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mbit: float, delay_s: float
) -> None:
    """One direction of the cable."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

    async def deliver() -> None:
        while (item := await waiting.get())[1]:
            await asyncio.sleep(max(0.0, item[0] - time.monotonic()))
            writer.write(item[1])
            await writer.drain()
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deliver(), name="delivery")
        free_at, piece = time.monotonic(), b"x"
        while piece:
            piece = await reader.read(PIECE)
            free_at = max(free_at, time.monotonic()) + len(piece) * 8 / (mbit * 1e6)
            await asyncio.sleep(max(0.0, free_at - time.monotonic()))
            await waiting.put((free_at + delay_s, piece))


@asynccontextmanager
async def cable(endpoint: str, mbit: float, delay_s: float) -> AsyncIterator[str]:
    """An endpoint that leads to another one."""
    port = int(endpoint.rpartition(":")[2])

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(carry(reader, back, mbit, delay_s), name="there")
                tasks.create_task(carry(there, writer, mbit, delay_s), name="back")
        except* ConnectionError:  # a side has closed: the cable is not what is measured then
            writer.close()

    server = await asyncio.start_server(connect, HOST, 0)
    yield f"tcp://{HOST}:{server.sockets[0].getsockname()[1]}"
    server.close()


async def measure(folder: Path, rate: float, options: argparse.Namespace, *, deltas: bool) -> list[float]:
    """Seconds until each version is visible, the first of all whole."""
    address = {"address": Announced(HOST, "in a benchmark"), "window_bytes": 8 << 20, "deltas": deltas}
    store = VersionStore(folder / "trainer")
    trainer = WeightsExchangeProcess(store.directory, is_writers=True, **address)
    reader = WeightsExchangeProcess(folder / "reader", **address)
    took = []
    async with cable(await trainer.start(), options.mbit, options.delay_ms / 1e3) as source:
        await reader.start()
        for version, model in enumerate(islice(trained(rate, options.hidden), options.versions)):
            tensors = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
            published = publish(store, version, tensors)
            if version == options.versions // 2:  # lost on the way: the next is told by the one before it
                continue
            began = time.perf_counter()
            fetched = await reader.fetch(version, published.digest, [source])
            took.append(time.perf_counter() - began)
            found = read(fetched.location, published.digest)
            assert all(torch.equal(found[name], weight) for name, weight in tensors.items())
            del found
            for old in await trainer.retire(version - 3) if version >= 3 else ():
                store.retire(old)
            if version >= 3:
                await reader.retire(version - 3)
    await reader.close()
    await trainer.close()
    store.close()
    return took


def main() -> None:
    """Print a line for each learning rate and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=float, default=20)
    parser.add_argument("--delay-ms", type=float, default=25)
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that a loopback address is told to other hosts
    print(f"{options.mbit:.0f} Mbit/s, {options.delay_ms:.0f} ms each way, {options.versions} versions")
    for rate in RATES:
        for deltas in (False, True):
            torch.manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                first, *took = asyncio.run(measure(Path(folder), rate, options, deltas=deltas))
            way = "deltas" if deltas else "whole"
            print(
                f"lr {rate:.0e}  {way:>6}: first {first:6.2f} s, median of the others {median(took):6.2f} s, "
                f"longest {max(took):6.2f} s, all bit-equal",
                flush=True,
            )


if __name__ == "__main__":
    main()
