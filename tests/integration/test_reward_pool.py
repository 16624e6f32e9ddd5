"""The processes of a reward function: side by side; none can wedge the worker, or leave anything behind."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_workers import below

from workers.reward.child import Call, RewardChild
from workers.reward.pool import RewardPool, ScoringFailed

LIMIT_S = 300.0
FUNCTIONS = '''
import asyncio, ctypes, os, signal, socket, subprocess, sys, time
from contextlib import suppress
from pathlib import Path

import msgpack

HERE = Path(__file__).parent
IN_FLIGHT = []
ARRIVED = asyncio.Event()
DAEMON = """
import os, sys, time
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def started():
    """A process in a session of its own, and one that has lost its parent besides."""
    sleep = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (HERE / "sleep.pid").write_text(str(sleep.pid))
    subprocess.run([sys.executable, "-c", DAEMON, str(HERE / "daemon.pid")])
    while not (HERE / "daemon.pid").exists() or not (HERE / "daemon.pid").read_text():
        time.sleep(0.01)


def everywhere(data):
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, data)


def moody(completion, mood):
    match mood:
        case "session":
            started()
            time.sleep(600)
        case "garbage":
            everywhere(b"\\0\\0\\0\\5hello and more")
        case "forged":
            body = msgpack.packb(["scored", 1, [99.0]])
            everywhere(len(body).to_bytes(4, "big") + body)
        case "keyboard":
            raise KeyboardInterrupt("enough")
        case "surrogate":
            raise ValueError("lone \\ud800")
        case "lines":
            raise ValueError("many\\n  lines")
        case "unspeakable":
            raise Unspeakable
        case "closed":
            os.closerange(3, 64)
        case "taken":
            os.closerange(3, 64)
            while os.open(HERE / "innocent.txt", os.O_CREAT | os.O_RDWR) < 32:
                pass
        case "segfault":
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "group":
            os.killpg(0, signal.SIGKILL)
        case "fork":
            os.fork()
        case "nothing":
            print("a print must not reach the pipe")
            os.write(1, b"nor a raw write")
    return 0.5


async def arrive(count):
    """Wait until so many calls are in flight."""
    IN_FLIGHT.append(1)
    if len(IN_FLIGHT) >= count:
        ARRIVED.set()
    await ARRIVED.wait()


def knock():
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(HERE / "door"))


def is_first():
    """Whether this is the first process of the function."""
    try:
        (HERE / "first.pid").open("x").write(str(os.getpid()))
    except FileExistsError:
        return (HERE / "first.pid").read_text() == str(os.getpid())
    return True


async def judge(completions, mood):
    """One call per group; returns the process that it ran in."""
    rewards = [float(os.getpid())] * len(completions)
    match mood[0]:
        case "meet":
            await arrive(6)
        case "last":
            await ARRIVED.wait()
        case "first":
            ARRIVED.set()
        case "late":
            try:
                await asyncio.sleep(600)
            finally:
                ARRIVED.set()
        case "deaf":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            knock()
            await asyncio.sleep(600)
        case "patient" if is_first():
            await asyncio.sleep(600)
        case "bystander" if is_first():
            await arrive(3)
            await asyncio.sleep(600)
        case "crash":
            if is_first():
                await arrive(3)
            os._exit(3)
        case "block":
            await asyncio.sleep(0.01)
            if not (HERE / "serial").exists():  # alone it takes no time that a busy machine could double
                time.sleep(0.5)
        case "task":
            await asyncio.create_task(leave())
    return rewards


async def leave():
    sys.exit("enough")


async def member(completion, mood):
    """One call per response; returns how many are in flight."""
    if mood == "exit":
        sys.exit("enough")
    IN_FLIGHT.append(1)
    try:
        if len(IN_FLIGHT) == mood:
            ARRIVED.set()
        await ARRIVED.wait()
        return len(IN_FLIGHT)
    finally:
        IN_FLIGHT.pop()
'''
Open = Callable[..., AbstractAsyncContextManager[RewardPool]]


@pytest.fixture
def pool(tmp_path: Path) -> Open:
    """Opens a pool around one of FUNCTIONS."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)

    @asynccontextmanager
    async def opened(function: str, **limits: Any) -> AsyncIterator[RewardPool]:
        limits = {"processes": 1, "timeout_s": LIMIT_S, **limits}
        async with (
            asyncio.timeout(LIMIT_S),
            RewardPool(f"{tmp_path}/functions.py:{function}", **limits) as made,
        ):
            await made.start()
            yield made

    return opened


async def ask(pool: RewardPool, mood: Any, *, members: int = 1) -> list[float] | str:
    """Rewards, or the reason of the failure."""
    row = json.dumps({"mood": mood, "prompt": "?"}).encode()
    texts, ids = ["!"] * members, [[1]] * members
    try:
        return await pool.score((0, row, "?", [0], texts, ids, ["stop"] * members), members=members)
    except ScoringFailed as error:
        return str(error)


async def begun(pool: RewardPool, mood: str, file: Path | None = None) -> tuple[RewardChild, Call]:
    """The call of this mood, and its process, once it has begun and has written the file.

    A test says itself that a limit is over: a short one would be over for whatever a busy machine delays.
    """
    while True:
        for child in pool._children:
            for call in child.calls.values():
                is_there = file is None or (file.exists() and file.read_text())  # noqa: ASYNC240
                if json.loads(call.request[1])["mood"] == mood and call.has_begun and is_there:
                    return child, call
        await asyncio.to_thread(os.sched_yield)


async def ask_all(pool: RewardPool, moods: list[Any], *, members: int = 1) -> list[Any]:
    return await asyncio.gather(*(ask(pool, mood, members=members) for mood in moods))


MOODS = {
    "session": "longer than `reward.timeout_s` = 300 s and was killed",
    "garbage": "wrote something else than answers",
    "forged": "wrote something else than answers",
    "keyboard": "raised KeyboardInterrupt: enough",
    "surrogate": "lone \\ud800",
    "lines": "raised ValueError: many lines.\nTraceback",
    "unspeakable": "raised functions",
    "closed": "closed the pipe to its worker",
    "taken": "closed the pipe to its worker",
    "segfault": "killed by signal 11 (SIGSEGV)",
    "killed": "killed by signal 9 (SIGKILL), and not by its worker",
    "group": "killed by signal 9 (SIGKILL), and not by its worker",
    "fork": [0.5],
    "nothing": [0.5],
}


async def test_no_function_wedges_its_worker_and_each_failure_is_told_as_what_it_was(
    pool: Open, tmp_path: Path
) -> None:
    async with pool("moody", processes=3) as made:
        asked = asyncio.create_task(ask_all(made, list(MOODS)))
        child, call = await begun(made, "session", tmp_path / "daemon.pid")
        child._on_late(call)
        outcomes = dict(zip(MOODS, await asked, strict=True))
        for mood, expected in MOODS.items():
            outcome = outcomes[mood]
            assert outcome == expected if isinstance(expected, list) else expected in outcome, (mood, outcome)
        assert await ask_all(made, ["nothing"] * 6) == [[0.5]] * 6
        for name in ("sleep", "daemon"):
            assert not psutil.pid_exists(int((tmp_path / f"{name}.pid").read_text()))
    assert (tmp_path / "innocent.txt").read_bytes() == b""
    assert below() == []


async def test_groups_of_an_async_function_are_in_flight_together_and_end_in_any_order(pool: Open) -> None:
    async with pool("judge", concurrency=6) as made:
        assert made.capacity(8) == 6
        met = await ask_all(made, ["meet"] * 6)
        assert len({rewards[0] for rewards in met}) == 1
    async with pool("judge", concurrency=6) as made:
        last = asyncio.create_task(ask(made, "last"))
        first = await ask(made, "first")
        assert await last == first


async def test_concurrency_counts_calls_and_never_splits_a_group(pool: Open) -> None:
    async with pool("member", concurrency=5) as made:
        assert made.capacity(2) == 2
        assert made.capacity(8) == 1
        counts = await ask_all(made, [4] * 4, members=2)
        assert max(count for rewards in counts for count in rewards) == 4.0
    async with pool("member", concurrency=5) as made:
        assert max(await ask(made, 6, members=6)) == 6.0


async def test_a_late_async_group_is_cancelled_alone(pool: Open) -> None:
    async with pool("judge", concurrency=8, grace_s=LIMIT_S) as made:
        late = asyncio.create_task(ask(made, "late"))
        (process,) = await ask_all(made, ["nothing"])
        child, call = await begun(made, "late")
        child._on_late(call)
        outcome = await late
        assert "longer than `reward.timeout_s` = 300 s and was cancelled. Raise `reward.timeout_s`" in outcome
        assert await ask(made, "last") == process  # in the same process, where the late one said good-bye


async def test_a_group_that_does_not_obey_is_killed_and_its_neighbours_are_asked_again(
    pool: Open, tmp_path: Path
) -> None:
    cancelled = asyncio.Event()

    def on_knock(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        cancelled.set()

    server = await asyncio.start_unix_server(on_knock, str(tmp_path / "door"))
    async with server, pool("judge", concurrency=8, grace_s=LIMIT_S) as made:
        deaf = asyncio.create_task(ask(made, "deaf"))
        first = await ask(made, "nothing")
        child, call = await begun(made, "deaf")
        child._on_late(call)
        await cancelled.wait()
        again = asyncio.create_task(ask(made, "patient"))
        await begun(made, "patient", tmp_path / "first.pid")  # in the same process
        while not call.is_heard:
            await asyncio.to_thread(os.sched_yield)
        child._on_disobedience(call)
        assert "did not obey its cancellation within 300 s, and was killed" in await deaf
        assert await again != first


async def test_when_many_may_have_crashed_a_process_each_is_asked_alone(pool: Open) -> None:
    async with pool("judge", concurrency=8) as made:
        one, crash, two = await ask_all(made, ["bystander", "crash", "bystander"])
        assert "ended with exit code 3 while it scored" in crash
        assert isinstance(one, list)
        assert isinstance(two, list)


async def test_an_async_function_that_blocks_its_loop_is_given_one_group_at_a_time(
    pool: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool("judge", concurrency=8, timeout_s=2.0, grace_s=LIMIT_S) as made:
        is_serial, made._be_serial = made._be_serial, lambda: (is_serial(), (tmp_path / "serial").touch())
        assert all(isinstance(outcome, list) for outcome in await ask_all(made, ["block"] * 6))
    assert "blocked its event loop for most of `reward.timeout_s`" in caplog.text


async def test_sys_exit_in_a_task_fails_the_group_and_not_the_process(pool: Open) -> None:
    async with pool("judge", concurrency=8) as made:
        process = await ask(made, "nothing")
        assert "raised SystemExit: enough" in await ask(made, "task")
        assert await ask(made, "nothing") == process
    async with pool("member", concurrency=8) as made:
        assert "raised SystemExit: enough" in await ask(made, "exit", members=2)


async def test_a_pool_that_closes_in_the_middle_of_calls_leaves_nothing(pool: Open, tmp_path: Path) -> None:
    async with pool("moody", processes=2) as made:
        asked = asyncio.create_task(ask(made, "session"))
        while not (tmp_path / "daemon.pid").exists():
            await ask(made, "quiet")
    assert "The worker ends" in await asked
    for name in ("sleep", "daemon"):
        pid = (tmp_path / f"{name}.pid").read_text()
        assert not pid or not psutil.pid_exists(int(pid))
    assert below() == []
