"""vLLM's engine core in a process of its own, seen from its client in this process.

Invariants: all output of the core comes through one queue in order, so when a pause has ended, every token of
the steps before it is there; when the core has ended, every waiting call gets an answer; the process ends
with this object, or with this process. Nothing here refers to the engine, so the engine can be
garbage-collected.
"""

import atexit
import logging
import signal
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from typing import Any

import zmq
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from protocol.errors import RunError
from protocol.files import is_file

logger = logging.getLogger(__name__)

REAP_S = 5.0


class CoreProcess:
    """The core of one LLMEngine; calls come from one thread."""

    def __init__(self, client: SyncMPClient, words: "tempfile.TemporaryDirectory[str]") -> None:
        manager = client.resources.engine_manager
        assert manager is not None
        (self._process,) = manager.processes
        self._client, self._words = client, words
        self._pause: Future[None] | None = None
        self._bell = _Bell(client.outputs_queue)
        mourned = client.resources, client.outputs_queue, client.utility_results, self._process
        Thread(target=_mourn, args=mourned, name="core", daemon=True).start()
        end = weakref.finalize(self, _end, client.resources, self._process)
        atexit.register(end)  # before multiprocessing's own, which waits for the core

    def on_output(self, call: Callable[[], None]) -> None:
        """Call this, on a thread of vLLM's, whenever there is more output."""
        self._bell.ring = call

    def has_output(self) -> bool:
        """Whether the next output can be taken without waiting."""
        return not self._client.outputs_queue.empty()

    def pause(self) -> None:
        """Let no further step begin; those in flight end. Returns at once."""
        if self._pause is None:
            with self.in_words():
                self._pause = self._send("pause_scheduler", "keep", False)
            outputs = self._client.outputs_queue
            self._pause.add_done_callback(lambda _: outputs.put_nowait(EngineCoreOutputs()))

    def is_paused(self) -> bool:
        """Whether nothing is in flight any more, and all of its samples were taken."""
        return self._pause is not None and self._pause.done() and not self.has_output()

    def resume(self) -> None:
        """Let steps begin again. Returns at once."""
        if self._pause is not None:
            self._pause = None
            with self.in_words():
                self._send("resume_scheduler")

    def call(self, method: str, *arguments: Any) -> Any:
        """The core's answer. Raises: RunError, with vLLM's message, if it failed or has ended."""
        with self.in_words():
            answer = self._send(method, *arguments)
            error = answer.exception()
            if isinstance(error, EngineDeadError):
                raise error
        if error is not None:
            raise RunError(f"vLLM's engine core refused: {error} The log of this worker has the traceback.")
        return answer.result()

    def collective_rpc(self, method: str, **given: Any) -> list[Any]:
        """The answers of each device's process."""
        return self.call("collective_rpc", method, None, (), given)

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Replace the errors of a core that has ended by a RunError."""
        try:
            yield
        except (EngineDeadError, zmq.ZMQError) as error:
            raise RunError(self._end_in_words()) from error

    def _send(self, method: str, *arguments: Any) -> Future[Any]:
        """As `SyncMPClient.call_utility`, without waiting for the answer."""
        number, answer = uuid.uuid1().int >> 64, Future[Any]()
        self._client.utility_results[number] = answer
        self._client._send_input(EngineCoreRequestType.UTILITY, (0, number, method, arguments))
        return answer

    def _end_in_words(self) -> str:
        self._process.join(REAP_S)  # its exit code is known a moment after its end
        code, file = self._process.exitcode, Path(self._words.name) / "words"
        how = "failed" if code is None else f"ended by {_signal(-code)}" if code < 0 else f"ended with {code}"
        said = f" Its last words: {file.read_text()}" if is_file(file) else ""
        return (
            f"vLLM's engine core, process {self._process.pid}, {how}.{said} Expected it to run as long "
            "as its instance. The responses that it had go on elsewhere from what was reported; this log has "
            "vLLM's own lines, and `dmesg` tells whether the machine was out of memory."
        )


class _Bell:
    """Calls a function whenever an item is put into a queue."""

    def __init__(self, outputs: Any) -> None:
        self.ring: Callable[[], None] = lambda: None
        put = outputs.put_nowait

        def put_and_ring(item: object) -> None:
            put(item)
            self.ring()

        outputs.put_nowait = put_and_ring  # what the client's thread, which reads the socket, calls


def _mourn(resources: Any, outputs: Any, answers: dict[int, Future[Any]], process: Any) -> None:
    """Answer all waiting calls when the core has ended: vLLM 0.32 lets them wait forever."""
    connection.wait([process.sentinel])
    resources.engine_dead = True  # first: from now on no call begins to wait
    for number in list(answers):
        if (answer := answers.pop(number, None)) is not None:
            answer.set_exception(EngineDeadError())
    outputs.put_nowait(EngineDeadError())


def _end(resources: Any, process: Any) -> None:
    """Kill the core, which holds nothing to be kept, and ignores gentler signals (in_core.py)."""
    resources.engine_dead = True
    resources.engine_manager.manager_stopped.set()
    process.kill()
    process.join(REAP_S)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
