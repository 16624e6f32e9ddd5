"""A machine on which a process may have so few open files that no sandbox works."""

import shutil
import subprocess
import sys

import pytest

from workers.sandbox import bubblewrap

needs_bubblewrap = pytest.mark.skipif(
    not shutil.which(bubblewrap.PROGRAM), reason=f"there is no {bubblewrap.PROGRAM}"
)


@pytest.mark.parametrize(
    ("files", "choice"),
    [
        pytest.param(40, "auto", marks=needs_bubblewrap),
        pytest.param(30, "auto", marks=needs_bubblewrap),
        (30, "limits"),
    ],
)
def test_it_is_told_with_nothing_about_anything_else(files, choice):
    program = (
        "import asyncio, resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
        "from workers.sandbox.chosen_box import open_box\n"
        f"asyncio.run(open_box({choice!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"protocol.errors.ConfigError: `reward.sandbox: {choice}` cannot be had.")
    assert "Too many open files" in told
    assert f"This process may have {files} open files; expected 1024 or more. Raise the limit" in told
    assert not [word for word in ("namespaces", "by hand", "another user", "argument") if word in told], told
