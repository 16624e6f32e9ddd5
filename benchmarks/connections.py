"""Connections without a key, and many with one: `python -m benchmarks.connections flood | workers`.

`flood`: a keyed run of a tiny model under `ulimit -n LIMIT` (the hard limit as well, unless --hard says
more); in turn nobody knocks, and CONNECTIONS idle TCP connections without any key are held open, each made
again AGAIN seconds after it was closed. Said: steps a second in both, and their ratio.

`workers`: a controller's server with keys, and COUNT workers that attach and beat. Said: its descriptors and
memory before and after, so per worker, and the limit that is needed.
"""

import argparse
import asyncio
import json
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import zmq

from benchmarks.soak import TASK, config
from controller import Controller
from controller.config.models import Config
from protocol.messages import Attach, Beat, Message
from protocol.wire.codec import Packet, encode
from protocol.wire.descriptors import raise_limit
from protocol.wire.security import Keyring, load_worker_key, make_keys, secure_client
from protocol.wire.server import Server

WARM_UP_STEPS = 10
SOCKETS = 500  # of one ZeroMQ context; it allows 1,023


def settings(folder: Path, port: int) -> Config:
    """A tiny run that reads its prompts from a file, behind a port with keys."""
    sys.path.insert(0, str(TASK.parent))
    from even_digits import prompts  # pyright: ignore[reportMissingImports]

    rows = [json.dumps(row) for row, _ in zip(prompts(seed=0), range(500), strict=False)]
    (folder / "data.jsonl").write_text("\n".join(rows))
    make_keys(folder / "keys")
    made = config(str(folder), 1_000_000, bind=f"tcp://127.0.0.1:{port}", keys=str(folder / "keys"))
    data = made.data.model_copy(update={"path": str(folder / "data.jsonl")})
    return made.model_copy(update={"data": data})


async def run(folder: Path, port: int) -> None:
    """The run, to the end of its standard input; each step is a line of its output."""
    async with Controller(settings(folder, port), on_warning=say) as controller:
        asyncio.get_running_loop().add_reader(0, controller.stop, "measured")
        async for _ in controller.train():
            print(time.monotonic(), flush=True)


def say(text: str) -> None:
    """A warning, for a person."""
    print(text, file=sys.stderr, flush=True)


def hold(port: int, count: int, again_s: float) -> None:
    """Hold so many idle connections, to the end of standard input; says then how often one was closed, and
    the CPU time that this took. At the lowest priority: an attacker has a machine of his own."""
    os.nice(19)
    raise_limit()
    watch, closed = select.epoll(), 0
    watch.register(0, select.EPOLLIN)
    standing: dict[int, socket.socket] = {}
    due = deque([time.monotonic()] * count)  # when each connection that is not there is to be made
    while True:
        while due and due[0] <= time.monotonic():
            due.popleft()
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            standing[one.fileno()] = one
            watch.register(one.fileno(), select.EPOLLRDHUP)
        for number, _ in watch.poll(max(0.0, due[0] - time.monotonic()) if due else None):
            if number == 0:
                print(closed, time.process_time())
                return
            standing.pop(number).close()
            closed += 1
            due.append(time.monotonic() + again_s)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.connections", *map(str, words)]


def pace(lines: Any, seconds: float) -> float:
    """Steps a second over this time."""
    first = last = float(lines.readline())
    count, end = 0, first + seconds
    while last < end:
        if not (line := lines.readline()):
            raise SystemExit("The run has ended; its words are above.")
        last, count = float(line), count + 1
    return count / (last - first)


def flood(options: argparse.Namespace) -> None:
    """Alternate between quiet and flood; print both paces."""
    limits = (options.limit, options.hard or options.limit)
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            command("run", folder, options.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(WARM_UP_STEPS):
            child.stdout.readline()
        ratios = [one_round(child, options, number) for number in range(options.rounds)]
        child.communicate("\n")
    ratio, words = statistics.median(ratios), f"ulimit -n {limits[0]} (hard {limits[1]})"
    print(f"{words}: {ratio:.2f} of the pace, exit code {child.returncode}")


def one_round(child: subprocess.Popen[str], options: argparse.Namespace, number: int) -> float:
    """Quiet, then flooded, then quiet: the ratio of the paces."""
    controller = psutil.Process(child.pid)
    before = pace(child.stdout, options.seconds)
    crowd = subprocess.Popen(
        command("hold", options.port, options.connections, options.again),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pace(child.stdout, 2.0)  # until it is there
    cpu = sum(controller.cpu_times()[:2])
    flooded = pace(child.stdout, options.seconds)
    cpu, files = sum(controller.cpu_times()[:2]) - cpu, controller.num_fds()
    closed, crowd_cpu = crowd.communicate("\n")[0].split()
    quiet = (before + pace(child.stdout, options.seconds)) / 2
    print(
        f"round {number}: {quiet:.2f} steps/s, with {options.connections} idle connections {flooded:.2f}; "
        f"{closed} times one was closed and made again, for {float(crowd_cpu):.1f} s of CPU time; the "
        f"controller had {files} descriptors open and took {cpu:.1f} s in {options.seconds:g} s", flush=True,
    )  # fmt: skip
    return flooded / quiet


def workers(options: argparse.Namespace) -> None:
    """Attach many workers to a server; print what each costs it."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            command("serve", folder, options.port, options.count),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        assert server.stdin is not None
        print(server.stdout.readline().strip(), flush=True)
        raise_limit()
        begun = time.monotonic()
        contexts, sockets = attach_all(Path(folder), options.port, options.count)
        print(server.stdout.readline().strip(), f"after {time.monotonic() - begun:.1f} s")
        server.communicate("\n")
        for socket in sockets:
            socket.close(0)
        for context in contexts:
            context.term()


def attach_all(folder: Path, port: int, count: int) -> tuple[list[Any], list[Any]]:
    """So many workers' sockets, each of which has said Attach."""
    key = load_worker_key(folder / "keys" / "node1.key")
    contexts, sockets = [zmq.Context() for _ in range(-(-count // SOCKETS))], []
    for number in range(count):
        socket = contexts[number // SOCKETS].socket(zmq.DEALER)
        secure_client(socket, key)
        socket.connect(f"tcp://127.0.0.1:{port}")
        attach = Attach("rollout", f"worker-{number}", number, "here")
        socket.send_multipart(encode(Packet(1, 0, attach, ())))
        sockets.append(socket)
    return contexts, sockets


async def serve(folder: Path, port: int, count: int) -> None:
    """A server that says what it has open before and after so many workers have attached and beaten."""
    limits, heard, all_there = raise_limit(), set[str](), asyncio.Event()
    make_keys(folder / "keys", "node1", ("rollout",))

    def on_message(peer: str, message: Message, frames: tuple[bytes, ...]) -> None:
        heard.add(peer)
        server.send(peer, Beat())
        if len(heard) == count:
            all_there.set()

    server = Server(
        f"tcp://127.0.0.1:{port}", on_message=on_message, on_fault=lambda peer, why: say(why),
        keys=Keyring(folder / "keys"), strangers=limits.strangers,
    )  # fmt: skip
    server.start()
    me = psutil.Process()
    before, memory = me.num_fds(), me.memory_info().rss
    print(f"{limits.in_words()} {before} are open.", flush=True)
    await all_there.wait()
    after, more = me.num_fds(), me.memory_info().rss - memory
    print(
        f"{count} workers are attached: {after} descriptors, {(after - before) / count:.3f} and "
        f"{more / count / 1e3:.0f} kB a worker,", flush=True,
    )  # fmt: skip
    await asyncio.to_thread(sys.stdin.readline)
    server.close()


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("flood", "workers", "run", "hold", "serve"))
    parser.add_argument("inner", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--again", type=float, default=1.0, help="seconds until a closed one is made again")
    parser.add_argument("--limit", type=int, default=1024)
    parser.add_argument("--hard", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--port", type=int, default=28517)
    options = parser.parse_args()
    inner = options.inner
    match options.what:
        case "run":
            asyncio.run(run(Path(inner[0]), int(inner[1])))
        case "hold":
            hold(int(inner[0]), int(inner[1]), float(inner[2]))
        case "serve":
            asyncio.run(serve(Path(inner[0]), int(inner[1]), int(inner[2])))
        case _:
            print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
            (flood if options.what == "flood" else workers)(options)


if __name__ == "__main__":
    main()
