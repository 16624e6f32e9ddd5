"""The floor under the remote rows of `benchmarks.weights`: the same bytes through ZeroMQ alone.

One ROUTER sends slices of a mapped file by reference; every DEALER is a process of its own, asks a window
ahead, and copies what comes to memory beyond the caches. The chunks, the window and the allocator's settings
are those of the agents; there is no checksum, no file to write, and nothing to go on from.
"""

import mmap
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import psutil
import zmq

from workers.weights.exchange_process import ALLOCATOR
from workers.weights.manifest import CHUNK_BYTES

WINDOW = 16  # chunks
RING = 64  # chunks that a reader copies to, in turn


class RawZeroMQ:
    """One sender, and readers side by side."""

    def __init__(self, content: str, count: int) -> None:
        """`content`: the path of a file as large as what will be sent."""
        self._server = start("serve", content)
        assert self._server.stdout is not None
        endpoint = self._server.stdout.readline().strip()
        self._readers = [start("read", endpoint) for _ in range(count)]
        self._processes = [psutil.Process(process.pid) for process in (self._server, *self._readers)]

    def send(self, mb: int, count: int) -> None:
        """That many megabytes to each of that many readers; returns when all have them."""
        for reader in self._readers[:count]:
            assert reader.stdin is not None
            reader.stdin.write(f"{mb}\n")
            reader.stdin.flush()
        for reader in self._readers[:count]:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "done\n"

    def cpu_s(self) -> float:
        """Spent so far, by all of them."""
        return cpu_s(self._processes)

    def close(self) -> None:
        """End them."""
        for process in (self._server, *self._readers):
            process.kill()
            process.communicate()


def cpu_s(processes: list[psutil.Process]) -> float:
    """Processor time of these processes until now.

    Of their threads that live, in nanoseconds: what a process is charged in all comes in ticks of 10 ms.
    """
    tasks = [task for process in processes for task in Path(f"/proc/{process.pid}/task").iterdir()]
    if not all((task / "schedstat").exists() for task in tasks):
        return sum(sum(process.cpu_times()[:2]) for process in processes)
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def start(*words: str) -> Popen[str]:
    command = [sys.executable, "-m", "benchmarks.raw_zeromq", *words]
    return Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=os.environ | ALLOCATOR)


def serve(content: str) -> None:
    with open(content, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, 2 * WINDOW + 2)
    socket.bind("tcp://127.0.0.1:*")
    print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        reader, word = socket.recv_multipart()
        begin = int(word) * CHUNK_BYTES
        socket.send_multipart([reader, word, whole[begin : begin + CHUNK_BYTES]], copy=False)


def read(endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, 2 * WINDOW + 2)
    socket.connect(endpoint)
    ring = memoryview(bytearray(b"x") * (RING * CHUNK_BYTES))
    for line in sys.stdin:
        count = int(line)
        for index in range(min(WINDOW, count)):
            socket.send(b"%d" % index)
        for index in range(count):
            _, chunk = socket.recv_multipart(copy=False)
            place = index % RING * CHUNK_BYTES
            ring[place : place + CHUNK_BYTES] = chunk.buffer
            if index + WINDOW < count:
                socket.send(b"%d" % (index + WINDOW))
        print("done", flush=True)


if __name__ == "__main__":
    {"serve": serve, "read": read}[sys.argv[1]](sys.argv[2])
