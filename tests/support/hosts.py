"""Hosts on one machine: network namespaces of their own, joined by cables that delay, lose and cut.

Invariants: the machine's own network is never touched, since all ends lie in namespaces that this process
makes and whose last process ends with it; a cable is a pair of TUN devices and a thread between them, so no
module of the kernel is needed for delay or loss. No host has a default route.
"""

import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU, MOST_BYTES = 1500, 65_536
QUEUE_BYTES = 256_000  # that a cable holds back before it drops
HUB = "controller"


@dataclass
class Cable:
    """One direction of a cable, as it is now."""

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 2.5e6  # 20 Mbit/s
    is_cut: bool = False


@dataclass
class Network:
    """Namespaces by host, and both directions of the cable of each host to the hub."""

    holders: dict[str, "subprocess.Popen[bytes]"]
    to_host: dict[str, Cable] = field(default_factory=dict)
    to_hub: dict[str, Cable] = field(default_factory=dict)

    def address(self, host: str) -> str:
        """Of a host; of the hub, that on the cable of the first one."""
        hosts = [name for name in self.holders if name != HUB]
        return "10.77.1.1" if host == HUB else f"10.77.{hosts.index(host) + 1}.2"

    def inside(self, host: str, *command: str) -> list[str]:
        """A command line that runs in the host's namespace."""
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net", *command]

    def start(
        self, host: str, command: Sequence[str], log: Path, **environment: str
    ) -> "subprocess.Popen[bytes]":
        """A process of that host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.inside(host, *command), stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "STALEFLOW_HOST": f"host-{host}", **environment},
            )  # fmt: skip

    def cut(self, host: str, *, both: bool = True) -> None:
        """Let nothing through to this host; nor from it, unless one direction alone is cut."""
        self.to_host[host].is_cut = True
        self.to_hub[host].is_cut = both

    def heal(self, host: str) -> None:
        """Let everything through again."""
        self.to_host[host].is_cut = self.to_hub[host].is_cut = False


def why_not() -> str | None:
    """One sentence on why namespaces cannot be made here; None if they can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces need root on Linux"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun, which cables between namespaces are made of"
    tried = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, text=True)
    return f"network namespaces are not permitted here: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """A hub, where the controller runs, and these hosts, each on a cable of its own."""
    with ExitStack() as stack:
        holders = {}
        for name in (HUB, *hosts):
            held = subprocess.Popen(
                ["unshare", "--net", sys.executable, "-c", "print(flush=True); input()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(end, held)
            assert held.stdout is not None
            held.stdout.readline()
            holders[name] = held
        made = Network(holders)
        _run(made.inside(HUB, "ip", "link", "set", "lo", "up"))
        _run(made.inside(HUB, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        ended = threading.Event()
        for number, name in enumerate(hosts, 1):
            near = _tun(made, HUB, f"hub{number}", f"10.77.{number}.1/24")
            far = _tun(made, name, "host", f"10.77.{number}.2/24")
            _run(made.inside(name, "ip", "link", "set", "lo", "up"))
            _run(made.inside(name, "ip", "route", "add", "10.77.0.0/16", "via", f"10.77.{number}.1"))
            made.to_host[name], made.to_hub[name] = Cable(), Cable()
            stack.callback(os.close, near)
            stack.callback(os.close, far)
            for source, target, cable in ((near, far, made.to_host[name]), (far, near, made.to_hub[name])):
                thread = threading.Thread(target=_carry, args=(source, target, cable, ended), daemon=True)
                thread.start()
                stack.callback(thread.join)
        stack.callback(ended.set)
        yield made


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Kill a process, wait for it and let go of its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _tun(made: Network, host: str, name: str, address: str) -> int:
    """A TUN device in the host's namespace; its end here."""
    found: list[int] = []

    def make() -> None:  # in a thread of its own, which alone changes its namespace
        with Path(f"/proc/{made.holders[host].pid}/ns/net").open() as space:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space.fileno(), CLONE_NEWNET):
                return
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        found.append(end)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert found, f"no TUN device in the namespace of {host}"
    _run(made.inside(host, "ip", "addr", "add", address, "dev", name))
    _run(made.inside(host, "ip", "link", "set", name, "mtu", str(MTU), "up"))
    return found[0]


def _carry(source: int, target: int, cable: Cable, ended: threading.Event) -> None:
    """Take packets from one end to the other, as the cable is."""
    held: deque[tuple[float, bytes]] = deque()  # when it arrives, in order
    size, free_at, draw = 0, 0.0, random.Random(0)
    while not ended.is_set():
        wait = min(0.05, max(0.0, held[0][0] - time.monotonic())) if held else 0.05
        if select.select([source], [], [], wait)[0]:
            packet = os.read(source, MOST_BYTES)
            now = time.monotonic()
            is_lost = cable.is_cut or draw.random() < cable.loss or size > QUEUE_BYTES
            if not is_lost:
                free_at = max(now, free_at) + len(packet) / cable.bytes_per_s
                held.append((free_at + cable.delay_s, packet))
                size += len(packet)
        while held and held[0][0] <= time.monotonic():
            _, packet = held.popleft()
            size -= len(packet)
            if not cable.is_cut:
                try:
                    os.write(target, packet)
                except BlockingIOError:
                    continue  # the kernel's queue is full: lost, as on a real cable
