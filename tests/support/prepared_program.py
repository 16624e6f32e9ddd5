"""Python programs as processes of their own that need not import torch first: they are forked.

The process of `start_program` is as real as an executed one: it has a pid, a session and an environment of
its own, and takes SIGKILL. It is forked from the fork server of the tests, and so is the fork server that a
controller in it asks for: that is forked from the program's own process before the program begins
(tests/support/prepared_main.py). An executed one imports all that its workers need again: seven seconds of a
core for each controller that a test kills.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.host.forks import ForkedProcess, Forks

MAIN = Path(__file__).with_name("prepared_main.py")
OF_RUNS = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
"""What a run sets for its workers: with it, programs are forked from the server of this session's runs."""


class PreparedProcess:
    """A forked process, used as one of `asyncio.subprocess` is."""

    def __init__(
        self,
        process: ForkedProcess,
        forks: Forks,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        its_in: int,
    ) -> None:
        self.pid, self.stdin, self.stdout = process.pid, stdin, stdout
        self.returncode: int | None = None
        self._its_in = its_in  # it opens that by its name
        self._forks = forks
        self._end = asyncio.create_task(self._note_end(process))

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    async def _note_end(self, process: ForkedProcess) -> int:
        self.returncode = await process.wait()
        self._forks.close()
        self.stdin.close()  # what it has written may still be read
        os.close(self._its_in)
        return self.returncode


async def start_program(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    paths: Sequence[Path] = (),
    errors: int = 2,
) -> PreparedProcess:
    """What `python -c PROGRAM ARGUMENTS` does in this folder, with pipes to it and from it.

    `environment` stands in for that of the tests; `paths` are where else it finds modules; its errors go to
    the descriptor `errors`.
    """
    environment = dict(os.environ if environment is None else environment)
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    loop = asyncio.get_running_loop()
    its_in, in_ = os.pipe()
    out, its_out = os.pipe()
    stdout = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(out, "rb", 0))
    writing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(in_, "wb", 0))
    stdin = asyncio.StreamWriter(writing, flow, None, loop)
    forks = Forks(environment | OF_RUNS)
    command = [str(MAIN), f"/proc/{os.getpid()}/fd/{its_in}", program, *arguments]
    try:
        process = await forks.start(command, environment, output=its_out, error=errors)
    finally:
        os.close(its_out)
    return PreparedProcess(process, forks, stdin, stdout, its_in)
