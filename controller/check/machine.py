"""Checks of this machine for `launch.py doctor`: readings, each with a remedy if there is a problem.

Invariants: nothing is installed, and no file stays behind; tests that may crash or hang (drivers, sandboxes)
run in another process under a time limit; a reading that fails says so.
"""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import install
from controller.check.vllm import build_problem
from controller.compiled import finder
from install.vllm_environment import VLLM_ENVIRONMENT, vllm_extras
from protocol.files import is_dir
from protocol.segments import SHARED_MEMORY
from protocol.wire.descriptors import limit

LIMIT_S = 120.0  # for the process that tries devices and sandbox: import of torch from a slow disk takes tens
LEAST_MEMORY_GB = 4.0  # controller, trainer, one instance and one reward worker of examples/quickstart.yaml
LEAST_SHARED_GB = 1.0
LEAST_DISK_GB = 5.0
SHARED_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "9p", "gpfs", "beegfs"}
"""File systems on which SQLite's locks or its shared memory are unreliable (sqlite.org/wal.html, section
1)."""
CGROUP = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mounts")
VERSIONED = ("torch", "transformers", "safetensors", "pyzmq", "msgspec", "numpy", "pydantic")


@dataclass(frozen=True, slots=True)
class Reading:
    """One fact of the machine."""

    level: Literal["ok", "note", "error"]
    """`error`: no run of any size can start; `note`: some runs cannot start, or run badly."""
    part: str
    text: str


Readings = Iterator[Reading]


def readings(folder: Path) -> Readings:
    """All readings of this machine, part by part; `folder`: the folder of future runs."""
    parts: tuple[Callable[[], Readings], ...] = (
        _python, _packages, _compiled_core, _devices_and_sandbox, _cores, _memory, _shared_memory,
        lambda: _disk(folder), _descriptors, _network, _vllm,
    )  # fmt: skip
    for part in parts:
        yield from part()


def _python() -> Readings:
    version = sys.version.split()[0]
    yield Reading("ok", "python", f"{version} at {sys.executable}")


def _compiled_core() -> Readings:
    if (build := finder.found()) is not None:
        yield Reading("ok", "core", f"compiled, in {build}")
    elif finder.home() is None:
        yield Reading("ok", "core", f"runs from its sources, as {finder.SWITCH} is 0 in the environment")
    elif finder.is_outdated():
        text = "it was compiled from other sources, or for another Python, so that it runs from its sources: "
        yield Reading("note", "core", f"{text}`launch.py compile` again, or delete {finder.home()}")
    else:
        text = "runs from its sources; for hundreds of instances, `launch.py compile` makes it twice as fast"
        yield Reading("ok", "core", text)


def _packages() -> Readings:
    if lacking := install.missing(("workers",)):
        yield _without(", ".join(lacking))
        return
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in VERSIONED)
    yield Reading("ok", "packages", versions)
    if problem := build_problem():
        yield Reading("error", "packages", f"transformers {problem}")
    absent = [extra for extra in install.EXTRAS if extra not in ("vllm", "vllm-cpu") and _lacks(extra)]
    if absent:
        text = f"not installed: {', '.join(absent)}. A run installs what its configuration names."
        yield Reading("ok", "extras", text)


def _without(packages: str) -> Reading:
    """A reading on packages that this environment lacks, and how they are installed."""
    remedy = install.by_hand(("workers",))
    if install.is_forbidden():
        return Reading("error", "packages", f"not here: {packages}. Install: {remedy}")
    if install.is_complete(install.ENVIRONMENT, ("workers",)):  # once: a package was removed
        text = f"no more here: {packages}. Delete {install.ENVIRONMENT}, and start again."
        return Reading("error", "packages", text)
    text = f"not installed yet: {packages}. The first run does it, or by hand: {remedy}. Then ask again."
    return Reading("note", "packages", text)


def _lacks(extra: str) -> bool:
    return any(module not in install.BASE for module in install.missing((extra,)))


def _devices_and_sandbox() -> Readings:
    found, problem = _ask_a_worker()
    if found is None:
        yield Reading("error", "torch", problem)
        return
    if "torch" in install.missing(("workers",)):
        yield Reading("note", "devices", "torch, which tries them, is not installed")
    elif found["torch_problem"]:
        text = f"torch cannot be used: {found['torch_problem']}. Install it again: delete {sys.prefix}."
        yield Reading("error", "torch", text)
    else:
        yield Reading("ok", "torch", found["torch"])
        yield from _devices(found["devices"])
    if found["sandbox_problem"]:
        yield Reading("note", "sandbox", f"{found['sandbox_problem']} Only rewards of kind `code` need it.")
    else:
        yield Reading("ok", "sandbox", "bubblewrap runs programs that a model wrote")


def _ask_a_worker() -> tuple[dict[str, Any] | None, str]:
    """The answer of `workers.host.machine`, run as another process; or None, and why it failed."""
    command = [sys.executable, "-m", "workers.host.machine"]
    try:
        done = subprocess.run(command, cwd=install.ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        text = f"importing torch and asking for devices took more than {LIMIT_S:.0f} s: a driver that hangs, "
        return None, f"{text}or a very slow disk. Try: {' '.join(command)}"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return None, f"asking for devices ended with code {done.returncode}: {last}. Try: {' '.join(command)}"
    return json.loads(lines[-1]), ""


def _devices(devices: list[dict[str, Any]]) -> Readings:
    if not devices and install.has_gpu():
        text = "this machine has an NVIDIA GPU that torch does not see: its build is for CPUs or newer than "
        yield Reading("error", "devices", f"{text}the driver. `nvidia-smi` names the driver's CUDA; delete "
                      f"{install.ENVIRONMENT} and start again to install the build for it.")  # fmt: skip
    elif not devices:
        yield Reading("ok", "devices", "no GPU: engines and trainer compute on the CPU")
    for index, device in enumerate(devices):
        words = f"{index}: {device['name']}, {device['free_gb']:.1f} of {device['total_gb']:.1f} GB free"
        if device["problem"]:
            text = f"{words}; a small product failed: {device['problem']}"
            yield Reading("error", "devices", f"{text}. Leave it out: CUDA_VISIBLE_DEVICES.")
        elif not device["has_bf16"]:
            yield Reading("note", "devices", f"{words}; no bfloat16 in hardware: set dtypes to float32")
        elif device["free_gb"] < device["total_gb"] / 2:
            yield Reading("note", "devices", f"{words}: `nvidia-smi` tells who has the rest")
        else:
            yield Reading("ok", "devices", words)


def _cores() -> Readings:
    usable = float(len(os.sched_getaffinity(0)))
    if (share := _cgroup_cores()) is not None and share < usable:
        text = (
            f"{share:g} of {usable:g}: the container's limit. Set rollout.threads and trainer.threads to fit"
        )
        yield Reading("note", "cores", text)
    else:
        yield Reading("ok", "cores", f"{usable:g}")


def _cgroup_cores() -> float | None:
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Readings:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (int(lines[key].split()[0]) / 1e6 for key in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        yield Reading("note", "memory", "cannot be read from /proc/meminfo")
        return
    if (allowed := _cgroup_memory_gb()) is not None and allowed < total:
        text = f"{allowed:.1f} GB: the container's limit, of {total:.1f} GB of the machine"
        yield Reading("note" if allowed < LEAST_MEMORY_GB else "ok", "memory", text)
    elif available < LEAST_MEMORY_GB:
        text = (
            f"{available:.1f} of {total:.1f} GB are available; the smallest example wants {LEAST_MEMORY_GB:g}"
        )
        yield Reading("note", "memory", text)
    else:
        yield Reading("ok", "memory", f"{available:.1f} of {total:.1f} GB are available")


def _cgroup_memory_gb() -> float | None:
    try:
        words = (CGROUP / "memory.max").read_text().strip()
        return None if words == "max" else int(words) / 1e9
    except (OSError, ValueError):
        return None


def _shared_memory() -> Readings:
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        text = f"{SHARED_MEMORY}: {error.strerror}. Versions of weights then go through the run directory"
        yield Reading("note", "shared memory", f"{text}; weights.directory names a faster disk")
        return
    free, total = (blocks * room.f_frsize / 1e9 for blocks in (room.f_bavail, room.f_blocks))
    words = f"{free:.1f} of {total:.1f} GB free in {SHARED_MEMORY}"
    if free < LEAST_SHARED_GB:
        text = f"{words}: less than versions of most models take. In a container: --shm-size=8g or --ipc=host"
        yield Reading("note", "shared memory", text)
    else:
        yield Reading("ok", "shared memory", words)


def _disk(folder: Path) -> Readings:
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if is_dir(place))
    kind = _file_system(nearest)
    free = shutil.disk_usage(nearest).free / 1e9
    words = f"{free:.1f} GB free in {nearest} ({kind})"
    try:
        _try_journal(nearest)
    except (OSError, sqlite3.Error) as error:
        text = f"{words}: a journal cannot be kept there: {error}. Set run.dir to a folder of a local disk"
        yield Reading("error", "disk", text)
        return
    if kind in SHARED_FILE_SYSTEMS:
        text = (
            f"{words}: SQLite's journal is not safe on a network's file system. Set run.dir to a local disk"
        )
        yield Reading("note", "disk", text)
    elif free < LEAST_DISK_GB:
        yield Reading("note", "disk", f"{words}: checkpoints fill it soon. Set run.dir to a larger disk")
    else:
        yield Reading("ok", "disk", words)


def _file_system(folder: Path) -> str:
    """The type of the folder's file system; "unknown" if the mounts cannot be read."""
    try:
        mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except (OSError, ValueError):
        return "unknown"
    holding = [(place, kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(holding, key=lambda found: len(found[0]), default=("", "unknown"))[1]


def _try_journal(folder: Path) -> None:
    """Write a journal as a run does, and delete it. Raises: OSError, sqlite3.Error."""
    with tempfile.TemporaryDirectory(prefix=".staleflow-doctor-", dir=folder) as made:
        connection = sqlite3.connect(Path(made) / "run.db")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise OSError(f"SQLite keeps a {mode} journal there instead of a write-ahead log")
            connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB)")
            connection.execute("INSERT INTO events (data) VALUES (x'00')")
            connection.commit()
        finally:
            connection.close()


def _descriptors() -> Readings:
    found = limit()
    if found.workers < (os.cpu_count() or 1):
        yield Reading("note", "descriptors", f"{found.in_words()} Raise the hard limit: ulimit -Hn 65536")
    else:
        yield Reading("ok", "descriptors", found.in_words())


def _network() -> Readings:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = server.getsockname()
            with socket.create_connection(place, timeout=5.0):
                server.accept()[0].close()
    except OSError as error:
        text = (
            f"this machine cannot talk to itself at 127.0.0.1: {error}. Expected a loopback device: `ip link "
        )
        yield Reading("error", "network", f"{text}set lo up`, and no firewall on it")
        return
    host = socket.gethostname()
    if (address := _outward()) is None:
        text = f"{host}: no default route, so workers of other machines need weights.host to be set"
        yield Reading("ok", "network", text)
    else:
        yield Reading("ok", "network", f"{host} reaches others from {address}")


def _outward() -> str | None:
    """The address from which this machine reaches others; None without a route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address for documents
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _vllm() -> Readings:
    if install.is_complete(VLLM_ENVIRONMENT, vllm_extras()):
        yield Reading("ok", "vllm", f"installed in {VLLM_ENVIRONMENT}")
    else:
        yield Reading("ok", "vllm", "not installed: `python3 launch.py install --vllm` does")
