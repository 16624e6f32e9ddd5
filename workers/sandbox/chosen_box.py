"""Finds a sandbox that works on this machine, and a Python for it, by running a program in it.

Invariant: the requested sandbox is used, or refused; no weaker one replaces it.
"""

import errno
import os
import resource
import shutil
import sys
from typing import Literal

from protocol.errors import ConfigError
from workers.sandbox import bubblewrap
from workers.sandbox.box import Box
from workers.sandbox.job import Backend, Job, ProgramLimits, SandboxBroken

Choice = Literal["auto", "bubblewrap", "limits"]
PROBE = "import decimal, json, random\nprint('it works')"
ENOUGH_FILES = 1024  # a usual limit; 40 are too few
PROBE_LIMITS = ProgramLimits(cpu_s=20, wall_s=60)


async def open_box(choice: Choice, *, concurrency: int = 0, key: str = "reward.sandbox") -> Box:
    """A sandbox that has run a program; `key` is the configuration key that requests it.

    Raises: ConfigError, which says what to install or to configure.
    """
    backend: Backend = "limits" if choice == "limits" else "bubblewrap"
    reasons: list[str] = []
    if backend == "bubblewrap" and not shutil.which(bubblewrap.PROGRAM):
        reasons.append(f"`{bubblewrap.PROGRAM}` is not on the path. {bubblewrap.INSTALL_LINE}")
    else:
        for python in _pythons(backend):
            box = Box(backend, python=python, concurrency=concurrency)
            if not (problem := await _problem(box)):
                return box
            await box.close()
            if os.strerror(errno.EMFILE) in problem:  # as with any other Python
                raise ConfigError(f"`{key}: {choice}` cannot be had. {problem} {_more_files()}")
            reasons.append(f"With {python}: {problem}")
        reasons.append(BUBBLEWRAP_NEEDS if backend == "bubblewrap" else LIMITS_NEED)
    text = f"`{key}: {choice}` cannot be had: the sandbox `{backend}` does not work here. {' '.join(reasons)}"
    raise ConfigError(f"{text} {OTHERWISE.format(key=key)}" if choice == "auto" else text)


BUBBLEWRAP_NEEDS = (
    "It needs root, or user namespaces: sysctl kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container, --cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined."
)
LIMITS_NEED = (
    "Where root starts programs, they run as another user, who must be able to read Python: one in /usr."
)
OTHERWISE = (
    "Without it, `{key}: limits` has to be written by hand: programs are then limited in what they use, but "
    "see the network and the files of this machine, and may forge their rewards (docs/sandbox.md)."
)


def _more_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process may have {soft} open files; expected {ENOUGH_FILES} or more. Raise the limit "
        f"(`ulimit -n {ENOUGH_FILES}`{'' if soft < hard else ', and the hard one, `ulimit -Hn`'})."
    )


def _pythons(backend: Backend) -> list[str]:
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [own] if backend == "bubblewrap" else [own, "/usr/local/bin/python3", "/usr/bin/python3"]


async def _problem(box: Box) -> str:
    """Why a program does not run; "" if it does."""
    try:
        outcome = await box.run(Job("run", {"source": PROBE}, limits=PROBE_LIMITS))
    except SandboxBroken as error:
        return str(error)
    if outcome.ended_well and outcome.stdout.strip() == b"it works":
        return ""
    return f"a program {outcome.in_words}: {outcome.stderr.decode(errors='replace')[-300:]}"
