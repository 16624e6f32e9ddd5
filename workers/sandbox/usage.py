"""The resources used by the descendants of a process, read from /proc.

Invariant: a process that ends while it is read counts as 0.
"""

import os
import re
import socket
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGESIZE") / (1 << 20)
KB_OF_MB = 1024
PARENT, USER_TIME, THREADS, RESIDENT = 1, 11, 17, 21  # fields after the name in /proc/PID/stat


class Usage(NamedTuple):
    """The usage of some processes together."""

    cpu_s: float
    """Of these processes, and of children that they have waited for."""
    tasks: int
    """Processes and threads."""
    resident_mb: float
    """Shared pages counted in each process."""


def below(ancestor: int) -> list[list[str]]:
    """The status of each descendant of `ancestor`.

    The fields after the name in /proc/PID/stat, with the process id in place of the state.
    """
    children: dict[int, list[list[str]]] = defaultdict(list)
    folder = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for status in all_in(folder):
            children[int(status[PARENT])].append(status)
    finally:
        os.close(folder)
    found = list(children[ancestor])
    for status in found:
        found += children[int(status[0])]
    return found


def resident_mb_below(ancestor: int) -> float:
    """Resident memory of all descendants of a process, each shared page counted once."""
    folder = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return proportional_mb(folder, below(ancestor))
    finally:
        os.close(folder)


def all_in(folder: int) -> list[list[str]]:
    """Like `below`, for all processes in a folder like /proc, given as an open descriptor."""
    found: list[list[str]] = []
    for name in os.listdir(folder):
        if name.isdecimal() and (text := _read(folder, f"{name}/stat")):
            found.append([name, *text.rpartition(")")[2].split()[1:]])
    return found


def tasks_of(user: int) -> int:
    """The number of a user's processes and threads."""
    folder = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        mine = [status for status in all_in(folder) if _owner(folder, status[0]) == user]
    finally:
        os.close(folder)
    return usage_of(mine).tasks


def usage_of(processes: list[list[str]]) -> Usage:
    """The usage of these processes together."""
    return Usage(
        sum(int(time) for status in processes for time in status[USER_TIME : USER_TIME + 4]) / TICKS,
        sum(int(status[THREADS]) for status in processes),
        sum(int(status[RESIDENT]) for status in processes) * PAGE_MB,
    )


def proportional_mb(folder: int, processes: list[list[str]]) -> float:
    """Resident memory, each shared page counted once; the kernel takes milliseconds for it."""
    lines = [line for status in processes for line in _read(folder, f"{status[0]}/smaps_rollup").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / KB_OF_MB


def sockets_mb(folder: int, process: str) -> float:
    """The most that the sockets of a process's network can hold, including closed ones with data under way.

    Each socket counts with its possible content, unless its buffers were enlarged; TCP counts with its queued
    bytes.
    """
    text = _read(folder, f"{process}/net/sockstat")
    if not text:
        return 0.0
    count, queued = int(text.split()[2]), 0  # sockets: used COUNT
    text += _read(folder, f"{process}/net/sockstat6")  # those of IPv6 are counted there alone
    if count and re.search(r"^TCP6?: inuse [1-9]", text, re.MULTILINE):
        for name in ("tcp", "tcp6"):
            lines = _read(folder, f"{process}/net/{name}").splitlines()[1:]
            queued += sum(int(size, 16) for line in lines for size in line.split()[4].split(":"))
    datagrams = sum(int(found) for found in re.findall(r"^UDP6?: inuse (\d+)", text, re.MULTILINE))
    return (count * SENT_BYTES + datagrams * RECEIVED_BYTES + queued) / (1 << 20)


def _most_of_a_socket(buffer: int) -> int:
    """Bytes that a buffer of the default size may hold; the last piece may be half of it."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.getsockopt(socket.SOL_SOCKET, buffer) * 3 // 2


SENT_BYTES = _most_of_a_socket(socket.SO_SNDBUF)  # what waits in a Unix socket counts for its sender
RECEIVED_BYTES = _most_of_a_socket(socket.SO_RCVBUF)  # of UDP, which counts for its receiver


def waited_s(folder: int, processes: list[list[str]]) -> float:
    """Seconds for which these were ready to run without a core; 0 if the kernel does not count."""
    fields = [_read(folder, f"{status[0]}/schedstat").split() for status in processes]
    return sum(int(field[1]) for field in fields if len(field) == 3) / 1e9


def _read(folder: int, name: str) -> str:
    """The text of a file; "" if its process has ended, or access is denied."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read()
    return ""


def _owner(folder: int, name: str) -> int:
    with suppress(OSError):
        return os.stat(name, dir_fd=folder).st_uid
    return -1
