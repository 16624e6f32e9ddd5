"""The process in which the user's reward function runs: `python -m workers.reward_process FUNCTION PARENT`.

Invariants: only this process ever imports or calls the user's code; nothing that the code prints, reads or
closes can touch the pipe to the worker, because standard output is standard error here; one request, one
reply. Every packet is a length (4 bytes, big-endian) and msgpack.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

import msgpack

from protocol.codec import pack
from protocol.errors import ConfigError
from protocol.importing import load_object
from protocol.stacks import dump_on_signal
from workers.parent import die_with_parent
from workers.reward_functions import Scorer, ScoreRequest, adapt

LENGTH_BYTES = 4
READY, BROKEN, SCORED, FAILED = "ready", "broken", "scored", "failed"


def main() -> None:
    """Serve requests until the worker closes the pipe."""
    dump_on_signal()
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then ends this process
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # prints survive a kill
    try:
        scorer = adapt(load_object(sys.argv[1]))
    except ConfigError as error:
        _write(replies, BROKEN, str(error))
        sys.exit(1)
    _write(replies, READY)
    with asyncio.Runner() as runner:  # one loop for all calls: an async function may keep a client open
        while (request := _read(requests)) is not None:
            _write(replies, *runner.run(_score(scorer, request)))


async def _score(scorer: Scorer, request: list[Any]) -> tuple[Any, ...]:
    group, row, *rest = request
    try:
        return SCORED, await scorer(ScoreRequest(group, json.loads(row), *rest))
    except ConfigError as error:
        return FAILED, str(error)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        lines = traceback.format_exception(error)
        return FAILED, f"The reward function raised {type(error).__name__}: {error}.\n{''.join(lines)}"


def _read(pipe: BinaryIO) -> list[Any] | None:
    length = pipe.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return msgpack.unpackb(pipe.read(int.from_bytes(length, "big")))


def _write(pipe: BinaryIO, *reply: Any) -> None:
    body = pack(reply)
    pipe.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    pipe.flush()


if __name__ == "__main__":
    main()
