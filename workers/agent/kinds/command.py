"""Agents that are programs: one run per episode, which asks its policy at the door.

Invariants: a program leaves no process behind when it or its episode has ended; its output is read to the
end, and only the last of it is kept; its reward comes only from the last line that it prints.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from protocol.errors import ConfigError
from protocol.importing import python_path, python_path_of_users
from workers.agent.kinds.function import PlayEpisode
from workers.agent.kinds.results import BadResult, ProgramFailed
from workers.agent.policy import AgentPolicy

KEPT_BYTES = 64 << 10  # of its output
SHOWN_CHARS = 4000  # of its errors
READ_BYTES = 1 << 16


def from_command(argv: Sequence[str]) -> PlayEpisode:
    """Episodes that run this program, with the row as JSON on standard input. Raises: ConfigError."""
    if shutil.which(argv[0], path=_path()) is None:
        raise ConfigError(
            f"There is no program {argv[0]!r} on this machine; expected a name that PATH has, or the path of "
            "a file that may be executed. A script needs its interpreter: [python3, agent.py]."
        )

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "workers.children.program", python_path_of_users(), *argv,
            stdin=PIPE, stdout=PIPE, stderr=PIPE,
            env={
                **os.environ, **policy.environment, "EPISODE_SEED": str(policy.seed), "PATH": _path(),
                "PYTHONPATH": python_path(),
            },
        )  # fmt: skip
        try:
            printed, errors = await _talk(process, json.dumps(row).encode())
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)  # to its keeper, which ends all of its processes
        if code:
            raise ProgramFailed(_failed(argv[0], code, errors))
        return _reward(printed)

    return episode


def _path() -> str:
    """The PATH for programs: `python3` is this worker's."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


async def _talk(process: Process, row: bytes) -> tuple[bytes, bytes]:
    """Send the row; returns the last of the program's output, and of its errors."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as tasks:
        printed = tasks.create_task(_last(process.stdout), name="output")
        errors = tasks.create_task(_last(process.stderr), name="errors")
        process.stdin.write(row)
        with suppress(ConnectionError):  # the program need not read it
            await process.stdin.drain()
        process.stdin.close()
    return printed.result(), errors.result()


async def _last(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while data := await stream.read(READ_BYTES):
        kept = (kept + data)[-KEPT_BYTES:]
    return kept


def _failed(name: str, code: int, errors: bytes) -> str:
    how = f"exit code {code}"
    if code > 128 and code - 128 in set(signal.Signals):
        how += f", as {signal.Signals(code - 128).name} ends one"
    told = errors.decode(errors="replace").strip()[-SHOWN_CHARS:]
    return f"The program {name!r} ended with {how}; expected 0. " + (
        f"The last of its errors:\n{told}" if told else "It printed no errors."
    )


def _reward(printed: bytes) -> Any:
    """The reward in its last line; None if there is none. Raises: BadResult."""
    # not `splitlines`: JSON may have the other ends of lines that Unicode knows within its texts
    lines = [line for line in re.split(r"[\r\n]", printed.decode(errors="replace")) if line.strip()]
    try:
        told = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or "reward" not in told:
        return None
    reward = told["reward"]
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise BadResult(
            f"The last line that the program printed gives the reward {reward!r:.80}; expected a number, as "
            'in {"reward": 0.5}.'
        )
    return reward
