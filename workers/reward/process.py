"""The process in which a reward function runs, below its keeper.

Invariants: only this process imports or calls the user's code; the code's prints and reads cannot touch the
pipe to the worker, because standard output is redirected to standard error here; each call is answered once,
in any order, and a forked copy of this process answers nothing.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any

from pydantic import TypeAdapter

from protocol.errors import ConfigError
from protocol.plain_text import one_line
from protocol.rewards.kinds import AnyReward
from protocol.stacks import dump_on_signal
from workers.children.packets import Packets
from workers.children.pipe import WorkerPipe
from workers.reward.functions import Scorer, ScoreRequest, adapt, is_async, is_per_response
from workers.reward.kinds.interface import Place, Unscorable, make
from workers.reward.pipe import BEGUN, BROKEN, CANCEL, FAILED, HEARD, READY, SCORE, SCORED

BEAT_S = 0.25


class CallServer:
    """Calls the function, with as many calls at once as the worker sends."""

    def __init__(self, pipe: WorkerPipe, scorer: Scorer) -> None:
        self._pipe, self._scorer = pipe, scorer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._blocked_s, self._beat_due_s = 0.0, 0.0

    async def run(self) -> None:
        """Serve until the worker closes the pipe."""
        loop = asyncio.get_running_loop()
        ended, packets = asyncio.Event(), Packets()
        self._beat_due_s = loop.time()
        self._beat()
        async with asyncio.TaskGroup() as tasks:

            def read() -> None:
                if not (data := os.read(self._pipe.requests, 1 << 20)):
                    ended.set()
                for kind, number, *request in packets.feed(data):
                    if kind == SCORE:
                        call = self._score(number, *request)
                        self._calls[number] = tasks.create_task(call, name=f"call {number}")
                    elif kind == CANCEL and number in self._calls:
                        self._pipe.write(HEARD, number, self._blocked())
                        self._calls[number].cancel()

            loop.add_reader(self._pipe.requests, read)
            await ended.wait()
            os._exit(0)  # no worker waits for the calls in progress, and they may ignore a cancellation

    async def _score(self, number: int, group: int, row: bytes, prompt: bytes, *rest: Any) -> None:
        self._pipe.write(BEGUN, number, self._blocked())
        try:
            columns = json.loads(row)
            text = prompt.decode("utf-8", "surrogatepass")
            request = ScoreRequest(group, columns, columns.get("prompt", text), *rest)
            answer = SCORED, await self._scorer(request)
        except (ConfigError, Unscorable) as error:
            answer = FAILED, str(error)
        except BaseException as error:  # whatever the user's code raises, KeyboardInterrupt and such included
            what = one_line("".join(traceback.format_exception_only(error)))
            lines = "".join(traceback.format_exception(error))
            answer = FAILED, f"The reward function raised {what}.\n{lines}"
        del self._calls[number]
        self._pipe.write(answer[0], number, answer[1])

    def _beat(self) -> None:
        """Note how late the event loop is: for so long code without an await has blocked it."""
        loop = asyncio.get_running_loop()
        self._blocked_s, self._beat_due_s = self._blocked(), loop.time() + BEAT_S
        loop.call_later(BEAT_S, self._beat)

    def _blocked(self) -> float:
        return self._blocked_s + max(0.0, asyncio.get_running_loop().time() - self._beat_due_s)


def main() -> None:
    """Serve calls of the reward that the worker names, until it closes the pipe."""
    dump_on_signal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then ends this process
    pipe = WorkerPipe()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # prints survive a kill
    try:
        _, reward, *place = pipe.read_setup()
        target = make(TypeAdapter(AnyReward).validate_json(reward, strict=False), Place(*place))
        scorer = adapt(target)
    except ConfigError as error:
        pipe.write(BROKEN, str(error))
        sys.exit(1)
    pipe.write(READY, is_async(target), is_per_response(target))
    with asyncio.Runner() as runner:  # one loop for all calls: an async function may keep a client open
        loop = runner.get_loop()
        serving = loop.create_task(CallServer(pipe, scorer).run(), name="reward function")
        while True:
            try:
                loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt) as error:  # of a task that the user's code has started
                traceback.print_exception(error)
                if serving.done():
                    raise
