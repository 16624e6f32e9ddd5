"""The process in which episodes run, below its keeper.

Invariants: only this process imports or calls the user's code; each episode is a task of one event loop, and
ends with one message: ended, failed or, if it was cancelled, gone. A thread watches the loop, and reports the
episode that blocks it.
"""

import asyncio
import contextvars
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from protocol.blame import without_stop
from protocol.errors import ConfigError
from protocol.plain_text import one_line
from protocol.stacks import dump_on_signal
from workers.agent.kinds.chosen_kind import asks_at_door, load_agent, make_episode
from workers.agent.kinds.command import from_command
from workers.agent.kinds.function import PlayEpisode
from workers.agent.kinds.results import BadResult, NothingSaid, ProgramFailed, reward_of, reward_of_turns
from workers.agent.pipe import (
    ALIVE,
    ANSWER,
    ASK,
    BEGIN,
    BLOCKED,
    BROKEN,
    COUNTED,
    END,
    ENDED,
    FAILED,
    GONE,
    MAX_WORD_BYTES,
    READY,
    REFUSE,
)
from workers.agent.policy import (
    MAX_STATE_MB,
    AgentPolicy,
    BudgetExceeded,
    DoorAddress,
    EnvironmentFailed,
    EpisodeOver,
    Notes,
)
from workers.children.packets import Packets
from workers.children.pipe import WorkerPipe

BEAT_S = 0.25
BEATS = 4  # between two signs of life
MAX_ASK_BYTES = MAX_WORD_BYTES - (1 << 16)  # of a message, less its other fields
READ_BYTES = 1 << 16  # the capacity of a pipe
OVER = "The episode is over, so its policy answers no more. Await all requests before the agent returns."
_number: contextvars.ContextVar[int] = contextvars.ContextVar("episode", default=-1)


class _Line:
    """The questions of one episode."""

    def __init__(self, number: int, pipe: WorkerPipe, *, read_all: Callable[[], None]) -> None:
        """`read_all`: reads all messages of the worker that have come."""
        self._number, self._pipe = number, pipe
        self._loop = asyncio.get_running_loop()
        self.read_all = read_all
        self.notes = Notes()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._is_over = False

    def close(self) -> None:
        """End the episode: questions that wait, or come later, raise EpisodeOver."""
        self._is_over = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EpisodeOver(OVER))

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if asyncio.get_running_loop() is not self._loop:  # a thread of the episode runs its own loop
            asked = asyncio.run_coroutine_threadsafe(self.ask(question), self._loop)
            return await asyncio.wrap_future(asked)
        if self._is_over:
            raise EpisodeOver(OVER)
        question = dict(question)
        state = question.pop("state", None)
        try:
            text = json.dumps(question, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"The request is no JSON: {error}.") from None
        if (size := len(text) + len(state or b"")) > MAX_ASK_BYTES:
            raise ValueError(
                f"The request has {size:,} bytes as JSON; expected at most {MAX_ASK_BYTES:,}. Give the "
                "policy less text."
            )
        self._asked += 1
        number = self._asked
        self._waiting[number] = asyncio.get_running_loop().create_future()
        more = () if state is None else (state,)
        self._pipe.write(ASK, self._number, number, text.encode(), *more)
        try:
            return await self._waiting[number]
        finally:
            del self._waiting[number]

    def settle(self, question: int, outcome: dict[str, Any] | Exception) -> None:
        """Set the answer to a question, if it is still awaited."""
        waiting = self._waiting.get(question)
        if waiting is None or waiting.done():
            return
        if isinstance(outcome, Exception):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)


def _plain(value: Any) -> Any:
    """Convert message objects of SDKs, which have `model_dump`, for JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is none of JSON's types")


class EpisodeThreads(ThreadPoolExecutor):
    """Threads of episodes: a thread that hangs after its episode takes no place from other episodes."""

    def __init__(self, places: int) -> None:
        """`places`: for threads of running episodes, and as many again for those that hang."""
        super().__init__(max_workers=places, thread_name_prefix="episode")
        self._places = places
        self._of: dict[int, set[Future[Any]]] = {}  # by number of their episode
        self._left: set[Future[Any]] = set()  # that outlived their episode

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """As in every executor."""
        future = super().submit(without_stop, call, *arguments, **options)
        running = self._of.setdefault(_number.get(), set())
        running.add(future)
        future.add_done_callback(running.discard)
        return future

    def let_go(self, number: int) -> bool:
        """Cancel waiting calls of an ended episode; returns whether there is room for threads that go on."""
        own = tuple(self._of.pop(number, ()))  # a future that is done, or cancelled here, leaves the set
        left = {future for future in own if not future.cancel()}
        self._left = {future for future in self._left | left if not future.done()}
        self._max_workers = self._places + min(len(self._left), self._places)
        return len(self._left) <= self._places


class EpisodeServer:
    """Runs the episodes that the worker begins."""

    def __init__(
        self, pipe: WorkerPipe, play: PlayEpisode, *, is_isolated: bool = False,
        max_state_mb: int = MAX_STATE_MB, make_address: Callable[[str, str], DoorAddress] = DoorAddress,
        threads: EpisodeThreads | None = None,
    ) -> None:  # fmt: skip
        """`is_isolated`: the process has one episode, so its environment may contain the door's address.

        `make_address`: makes an address from url and key. `threads`: the executor of `asyncio.to_thread`.
        """
        self._threads = threads
        self._pipe, self._play, self._is_isolated = pipe, play, is_isolated
        self._make_address = make_address
        self._max_state_mb = max_state_mb
        self._packets = Packets()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.get_ident()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lines: dict[int, _Line] = {}
        self._to_end: set[int] = set()  # cancelled by the worker, and not ended yet

    async def run(self) -> None:
        """Serve until the worker closes the pipe."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        # not `_read`: an episode may have read the pipe empty since the loop saw that it is not
        self._loop.add_reader(self._pipe.requests, self._read_all)
        await self._loop.create_future()

    def _read(self) -> bool:
        """Read messages from the pipe; returns whether there may be more."""
        if not (data := os.read(self._pipe.requests, READ_BYTES)):
            os._exit(0)  # no worker waits for the episodes, and they may ignore a cancellation
        for kind, number, *parts in self._packets.feed(data):
            self._hear(kind, number, parts)
        return len(data) == READ_BYTES

    def _read_all(self) -> None:
        """Read all messages so far: the worker reports a turn before the door's client has its answer."""
        if threading.get_ident() != self._thread:
            done = threading.Event()
            self._loop.call_soon_threadsafe(lambda: (self._read_all(), done.set()))
            done.wait()
            return
        while select.select([self._pipe.requests], [], [], 0)[0] and self._read():
            pass

    def _hear(self, kind: str, number: int, parts: list[Any]) -> None:
        line, task = self._lines.get(number), self._tasks.get(number)
        if kind == BEGIN:
            self._lines[number] = _Line(number, self._pipe, read_all=self._read_all)
            _number.set(number)  # what the task starts has it, too
            self._tasks[number] = asyncio.get_running_loop().create_task(self._run(number, *parts))
            _number.set(-1)
        elif kind == END and task is not None:
            self._to_end.add(number)
            task.cancel()
        elif kind == ANSWER and line is not None:
            line.settle(parts[0], json.loads(parts[1]))
        elif kind == REFUSE and line is not None:
            question, limit, text = parts
            line.settle(question, BudgetExceeded(limit, text) if limit else ValueError(text))
        elif kind == COUNTED and line is not None:
            line.notes.count(*parts)

    async def _run(self, number: int, seed: int, row: bytes, url: str, key: str, state: bytes = b"") -> None:
        line = self._lines[number]
        address = self._make_address(url, key) if key else None
        if address and self._is_isolated:
            os.environ.update(address.environment)
        word: tuple[Any, ...] = (GONE,)
        try:
            saved = _restored(line.notes, state) if state else None
            policy = AgentPolicy(
                line, seed=seed, notes=line.notes, door=address, saved=saved, max_state_mb=self._max_state_mb
            )
            word = await self._play_one(policy, json.loads(row))
        except asyncio.CancelledError as error:
            if number not in self._to_end:  # the user's own
                word = FAILED, "agent", _in_words("raised", error)
        except EnvironmentFailed as error:
            word = FAILED, "environment", str(error) or "The agent raised EnvironmentFailed."
        except ConnectionError as error:
            word = FAILED, "environment", _in_words("lost a connection:", error)
        except (BadResult, ProgramFailed) as error:
            word = FAILED, "agent", str(error)
        except NothingSaid as error:
            word = FAILED, "limit", str(error)
        except BaseException as error:  # whatever the user's code raises, SystemExit and such included
            word = FAILED, "agent", _in_words("raised", error)
        finally:
            del self._tasks[number]
            self._to_end.discard(number)
            self._lines.pop(number).close()
        has_room = self._threads is None or self._threads.let_go(number)
        if word != (GONE,) or has_room:  # else the worker ends this process, with the threads that hang
            self._pipe.write(word[0], number, *word[1:])

    async def _play_one(self, policy: AgentPolicy, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Play one episode; returns the message that ends it. Raises: whatever the user's code raises."""
        notes, has_returned = policy.notes, False
        try:
            reward = reward_of(await self._play(policy, row), notes)
            has_returned = True
        except BudgetExceeded:
            if not notes.limit:
                raise  # its own exception, not of a limit of this episode
            reward = reward_of_turns(notes)
        except (EnvironmentFailed, ConnectionError, BadResult):
            raise  # errors of the result itself, also at a limit
        except Exception:
            self._read_all()
            if not notes.is_limit_of_door or notes.has_gone_on:
                raise
            reward = reward_of_turns(notes)  # a client's error at a limit can be any exception
        self._read_all()
        if not notes.turns and notes.limit:
            words = notes.limit_words or "A client at the door was told so."
            raise NothingSaid(
                f"The episode reached its limit `{notes.limit}` before the policy had said anything. {words} "
                "Give less text, or raise the limit."
            )
        if not notes.turns:
            raise BadResult("The agent returned before the policy had answered once.")
        told = {
            "reward": reward.value, "earned": reward.earned, "turn_rewards": sorted(notes.rewards.items()),
            "metrics": notes.metrics, "limit": notes.last_limit if has_returned else notes.limit,
            "log": notes.log,
        }  # fmt: skip
        return ENDED, json.dumps(told).encode()


def _restored(notes: Notes, state: bytes) -> bytes:
    """The state that the agent saved. Raises: EnvironmentFailed if notes and state cannot be read."""
    try:
        return notes.restore(state)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # another release has saved it
        raise EnvironmentFailed(
            f"The state that was saved of the episode cannot be read: {type(error).__name__}: {error}. It "
            "begins again from its start."
        ) from None


def _in_words(what: str, error: BaseException) -> str:
    short = one_line("".join(traceback.format_exception_only(error)))
    return f"The agent {what} {short}\n{''.join(traceback.format_exception(error))}"


class LoopWatch:
    """A thread that notices a blocked event loop, and the episode that blocks it.

    Code that holds the interpreter stops this thread, too: then the worker misses the loop's signs of life.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: WorkerPipe) -> None:
        self._loop, self._pipe = loop, pipe
        self._numbers: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
        self._beaten_at, self._beats = time.monotonic(), 0
        loop.set_task_factory(self._make_task)  # type: ignore[arg-type]  # the shape of 3.11
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        loop.call_soon(self._beat)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._numbers[task] = _number.get()
        return task

    def _beat(self) -> None:
        self._beaten_at = time.monotonic()
        self._beats += 1
        if self._beats % BEATS == 0:
            self._pipe.write(ALIVE, -1)
        self._loop.call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        while True:
            time.sleep(1.0)
            blocked_s = time.monotonic() - self._beaten_at - BEAT_S
            if blocked_s > 1.0:
                task = asyncio.current_task(self._loop)
                number = -1 if task is None else self._numbers.get(task, -1)
                self._pipe.write(BLOCKED, number, blocked_s)


def _agent_of(code: Mapping[str, Any]) -> tuple[PlayEpisode, bool]:
    """The configured agent, and whether it can reach its policy only at the door. Raises: ConfigError."""
    kind = code["kind"]
    if code["command"]:
        return from_command(code["command"]), True
    target = load_agent(code["function"], kind)
    play = make_episode(target, kind=kind, options=code["options"], has_door=code["has_door"])
    return play, asks_at_door(target, kind)


def main() -> None:
    """Run episodes of the agent that the worker names, until it closes the pipe."""
    dump_on_signal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then ends this process
    pipe = WorkerPipe()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # prints survive a kill
    code = json.loads(pipe.read_setup()[1])
    try:
        play, is_at_door = _agent_of(code)
    except ConfigError as error:
        pipe.write(BROKEN, str(error))
        sys.exit(1)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        threads = EpisodeThreads(code["concurrency"])
        loop.set_default_executor(threads)
        LoopWatch(loop, pipe)
        pipe.write(READY, is_at_door)
        server = EpisodeServer(
            pipe, play, is_isolated=code["is_isolated"], max_state_mb=code["max_state_mb"], threads=threads,
            make_address=partial(
                DoorAddress, request_kwargs=code["request_kwargs"], is_elsewhere=code["is_elsewhere"]
            ),
        )  # fmt: skip
        serving = loop.create_task(server.run(), name="episodes")
        while True:
            try:
                loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt) as error:  # of a task that the user's code has started
                traceback.print_exception(error)
                if serving.done():
                    raise
