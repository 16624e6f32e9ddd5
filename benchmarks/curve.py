"""What CURVE costs: `python -m benchmarks.curve [--rounds N]`.

A worker process keeps 32 messages under way and the controller's end answers each with one of the same size,
through the project's own codec, sessions and sockets, over tcp on this machine; plain and CURVE take turns.
Messages per second, and CPU time of the controller's process (its loop and libzmq's thread) per message.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
import zmq

from protocol.messages import Attach, Beat, Close, Encode, Message, PromptsEncoded
from protocol.wire.connection import Connection
from protocol.wire.security import Keyring, load_worker_key, make_keys
from protocol.wire.server import Server
from protocol.wire.sockets import Frames

WINDOW = 32
SIZES = {"200 B": 200, "64 KB": 65_536}
ATTACH = Attach("reward", "node1", 1, "here")


async def _answer(server_keys: Keyring | None, key: str, *, size: int, count: int) -> tuple[float, float]:
    """Messages per second and CPU microseconds per message of this side, while `count` are echoed."""
    done = asyncio.Event()
    heard = 0
    started = (0.0, 0.0)
    finished = (0.0, 0.0)

    def on_message(peer: str, message: Message, frames: Frames) -> None:
        nonlocal heard, started, finished
        if isinstance(message, PromptsEncoded):
            heard += 1
            if heard == WINDOW:
                started = time.perf_counter(), time.process_time()
            server.send(peer, Encode((0,)), frames)
            if heard == count:
                finished = time.perf_counter(), time.process_time()
                server.send(peer, Close("done", False))
        elif isinstance(message, Beat):
            done.set()

    server = Server(
        "tcp://127.0.0.1:*", on_message=on_message, on_fault=lambda _, reason: print(reason), keys=server_keys
    )
    server.start()
    words = [sys.executable, "-m", "benchmarks.curve", "--peer", server.endpoint, "--size", str(size)]
    peer = await asyncio.create_subprocess_exec(*words, "--key", key if server_keys else "")
    await peer.wait()
    server.close()
    wall, cpu = (end - begin for begin, end in zip(started, finished, strict=True))
    return (count - WINDOW) / wall, cpu / (count - WINDOW) * 1e6


async def _ask(endpoint: str, *, size: int, key: str) -> None:
    done = asyncio.Event()
    question = PromptsEncoded(((0, size // 4),), ()), (bytes(size),)

    def on_message(message: Message, frames: Frames) -> None:
        if isinstance(message, Encode):
            connection.send(*question)
        elif isinstance(message, Close):
            done.set()

    connection = Connection(
        endpoint, on_message=on_message, on_fault=print, key=load_worker_key(key) if key else None
    )
    connection.start()
    connection.send(ATTACH)
    for _ in range(WINDOW):
        connection.send(*question)
    await done.wait()
    connection.close()


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        uvloop.run(_ask(options.peer, size=options.size, key=options.key))
        return
    cpu = subprocess.run(["sh", "-c", "grep -m1 'model name' /proc/cpuinfo || true"], capture_output=True)
    print(
        f"{os.cpu_count()} CPUs,{cpu.stdout.decode().partition(':')[2].rstrip()}, libzmq {zmq.zmq_version()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        key = make_keys(Path(folder), "node1", ("reward",))
        keys = Keyring(folder)
        for name, size in SIZES.items():
            rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for round in range(options.rounds):
                for is_secure in (False, True) if round % 2 else (True, False):
                    count = 40_000 if size < 10_000 else 8_000
                    done = _answer(keys if is_secure else None, str(key), size=size, count=count)
                    rates[is_secure].append(uvloop.run(done))
            rate = {way: statistics.median(r for r, _ in found) for way, found in rates.items()}
            cost = {way: statistics.median(c for _, c in found) for way, found in rates.items()}
            print(
                f"{name}: plain {rate[False]:,.0f} msg/s, CURVE {rate[True]:,.0f} msg/s "
                f"(x{rate[True] / rate[False]:.2f}); CPU/message {cost[False]:.1f} us, {cost[True]:.1f} us "
                f"(+{cost[True] - cost[False]:.1f} us); medians of {options.rounds} rounds"
            )


if __name__ == "__main__":
    main()
