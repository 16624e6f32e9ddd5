"""A console that nobody reads any more costs a run nothing."""

import errno
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.console import PlainConsole
from controller.cli.guarded_console import GuardedConsole

STEPS = """
import sys
from pathlib import Path
from controller.cli.console import make_console
from controller.cli.guarded_console import GuardedConsole
console = GuardedConsole(make_console(sys.argv[1], steps=20_000))
for step in range(20_000):
    console.step({"step": step, "reward/mean": 0.5})
    console.warn("something")
console.close()
console.finish({"steps": 20_000, "is_success": True, "reason": ""}, Path())
sys.stderr.write("went on")
sys.exit(7)
"""


@pytest.mark.parametrize("mode", ["plain", "rich"])
def test_a_reader_that_ends_early_is_noticed_by_nobody(mode: str) -> None:
    command = [sys.executable, "-c", STEPS, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read().endswith("went on")
        assert process.wait() == 7


class Disk:
    """A file that a console writes to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.error: int | None = None

    def write(self, line: str) -> None:
        if self.error is not None:
            raise OSError(self.error, "it says no")
        self.lines.append(line)


def test_a_disk_that_was_full_has_what_is_said_when_there_is_room_again(caplog) -> None:
    disk, gone = Disk(), list[str]()
    console = GuardedConsole(PlainConsole(steps=1, write=disk.write), on_gone=lambda: gone.append("gone"))
    with caplog.at_level(logging.WARNING):
        console.note("before")
        disk.error = errno.ENOSPC
        console.note("while")
        console.warn("while")
        disk.error = None
        console.note("after")
        assert (disk.lines, gone) == (["before", "after"], [])
        disk.error = errno.EIO
        console.progress(0.5, "while")
        disk.error = None
        console.evaluation({"step": 1})
        console.finish({}, Path())
        console.close()
    assert (disk.lines, gone) == (["before", "after"], ["gone"])
    assert caplog.text.count("cannot be written to") == 1
