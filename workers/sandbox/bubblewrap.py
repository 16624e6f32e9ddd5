"""The command line of bubblewrap: what a program can see and write.

Invariants: the program sees the system, its Python and its own folder, and nothing else; it can write only to
that folder, whose size is limited; it has no network and sees no processes but its own.
"""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from workers.sandbox.job import ProgramLimits

PROGRAM = "bwrap"
INSTALL_LINE = (
    "Install it: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL)."
)
FOLDER = "/tmp"
FILES = "/box"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LOCAL_COUNT = (5, 14)
"""From this Linux version on, processes are counted per user namespace."""


def command(
    program: str, limits: ProgramLimits, *, visible: Sequence[str], files: Sequence[tuple[str, int]],
    seccomp: int, info: int,
) -> list[str]:  # fmt: skip
    """The arguments before those of the program.

    `visible`: folders that it may read besides the system. `files`: names and descriptors of their contents.
    `seccomp`: the descriptor of the filter, -1 for none. `info`: descriptor for the first process's id.
    """
    is_root = os.geteuid() == 0
    arguments = [program, "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    arguments += ["--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    if is_root:  # the program becomes another user, which only root can: see inside/begin.py
        arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        arguments += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    size = str(limits.file_mb << 20)
    arguments += ["--perms", "0777", "--size", size, "--tmpfs", FOLDER]  # first: it hides what is below it
    arguments += _binds(visible)
    arguments += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
    for device in DEVICES:
        arguments += ["--dev-bind", device, device]
    arguments += ["--symlink", "/proc/self/fd", "/dev/fd", "--symlink", FOLDER, "/dev/shm"]
    arguments += ["--perms", "0755", "--dir", FILES]
    for name, descriptor in files:
        arguments += ["--perms", "0444", "--file", str(descriptor), f"{FILES}/{name}"]
    arguments += ["--remount-ro", "/", "--chdir", FOLDER, "--info-fd", str(info)]
    if seccomp >= 0:
        arguments += ["--seccomp", str(seccomp)]
    return [*arguments, "--"]


def counts_processes_of_one_program() -> bool:
    """Whether the kernel's limit of processes can be used.

    Root gives each program its own user; other users need a count per user namespace.
    """
    release = platform.release().split(".")
    return os.geteuid() == 0 or tuple(int(part) for part in release[:2]) >= LOCAL_COUNT


def _binds(visible: Sequence[str]) -> list[str]:
    arguments: list[str] = []
    for name in (*SYSTEM, *SETTINGS):
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name), name]
        elif os.path.exists(name):
            arguments += ["--ro-bind", name, name]
    made: set[str] = {"/", FOLDER}
    for name in visible:
        if any(Path(name).is_relative_to(folder) for folder in SYSTEM):
            continue
        for parent in reversed(Path(name).parents):
            if str(parent) not in made:
                made.add(str(parent))  # bubblewrap itself makes folders that only their owner may enter
                arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", name, name]
    return arguments
