"""Real processes are started, noticed when they die, and never left behind."""

import asyncio
import errno
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import install
from controller.core.events import WorkerExited
from controller.host import supervisor
from controller.host.supervisor import CANNOT_START
from protocol.errors import RunError
from tests.support.ends import has_ended
from tests.support.stage import stage

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


async def ended(pidfd: int) -> None:
    """Wait for the end of a process that is not our child."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, event.set)
    await event.wait()
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


def is_gone(pid: int) -> bool:
    return has_ended(pid, limit_s=0)


async def test_a_worker_whose_folder_of_logs_was_removed_is_started_all_the_same(tmp_path):
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as s:
        (tmp_path / "logs").rmdir()
        s.supervisor.spawn("leaves", "rollout")
        assert await s.exits.get() == WorkerExited("leaves", "rollout", 0, "about to do my thing")
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


async def test_a_worker_is_started_like_a_remote_one_in_a_session_of_its_own(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        hello = await s.hello()
        expected = ["ipc://nowhere", "--role", "rollout", "--name", "rollout-0", f"--parent={os.getpid()}"]
        assert hello["argv"] == expected
        assert os.getsid(hello["pid"]) == hello["pid"] != os.getsid(0)
        environment = hello["env"]
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert environment["PYTHONPATH"].split(os.pathsep)[1] == "/somewhere"


async def test_a_worker_whose_parent_is_gone_before_it_looks_ends_at_once() -> None:
    somebody_else = os.getppid()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "workers.host", "ipc://nowhere", "--role", "rollout",
        f"--parent={somebody_else}",
    )  # fmt: skip
    async with asyncio.timeout(LIMIT_S):
        assert await process.wait() == 1


CHILD = """
import os, sys, time
from workers.link.parent import die_with_parent, outlive_parent
parent = int(sys.argv[1])
die_with_parent(parent)
outlive_parent(parent, lambda: os.write(1, b"alone "), limit_s=0.1)
os.write(1, b"ready ")
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-P", "-c", {CHILD!r}, str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""


async def test_a_worker_that_is_stopped_when_its_parent_is_killed_is_told_so_and_ends() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        child = int(await parent.stdout.readline())
        assert await parent.stdout.readexactly(6) == b"ready "
        os.kill(child, signal.SIGSTOP)
        parent.kill()
        assert await parent.stdout.read() == b"alone "  # to the end: nobody holds the pipe any more


async def test_a_worker_ends_after_its_parent_although_it_cannot_be_told_so() -> None:
    child = CHILD.replace('os.write(1, b"alone ")', "1 / 0")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT.replace(repr(CHILD), repr(child)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        await parent.stdout.readline()
        assert await parent.stdout.readexactly(6) == b"ready "
        parent.kill()
        assert await parent.stdout.read() == b""  # to the end: nobody holds the pipe any more


async def test_a_killed_worker_is_noticed_with_its_signal_and_last_words(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        pid = (await s.hello())["pid"]
        os.kill(pid, signal.SIGKILL)
        event = await s.exits.get()
        assert (event.name, event.role, event.exit_code) == ("rollout-0", "rollout", -signal.SIGKILL)
        s.supervisor.spawn("rollout-0", "rollout")
        assert (await s.hello())["pid"] != pid


async def test_last_words_are_the_end_of_this_processs_own_log(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        (tmp_path / "logs" / "fails.log").write_text("words of an earlier process\n" * 3)
        s.supervisor.spawn("fails", "reward")
        event = await s.exits.get()
        assert event.exit_code == 1
        assert event.last_words.splitlines() == [f"line {i}" for i in range(25, 40)]
        s.supervisor.spawn("leaves", "reward")
        event = await s.exits.get()
        assert (event.exit_code, event.last_words) == (0, "about to do my thing")


async def test_kill_takes_what_the_worker_had_started_with_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.supervisor.spawn("with-child", "reward")
        hello = await s.hello()
        child = os.pidfd_open(hello["child"])
        s.supervisor.kill("with-child")
        s.supervisor.kill("nobody")
        assert (await s.exits.get()).exit_code == -signal.SIGKILL
        await ended(child)


async def test_no_process_is_left_after_stop_and_a_delayed_one_never_starts(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        for name in ("rollout-0", "rollout-1"):
            s.supervisor.spawn(name, "rollout")
        s.supervisor.spawn("later", "rollout", 600.0)
        pids = [(await s.hello())["pid"] for _ in range(2)]
        await s.supervisor.stop(0)
        assert all(map(is_gone, pids))
        assert {s.exits.get_nowait().name for _ in range(2)} == {"rollout-0", "rollout-1"}
        assert s.exits.empty()


async def test_a_worker_that_has_not_attached_holds_up_no_end(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        pid = (await s.hello())["pid"]
        await s.supervisor.stop(1e9, importing=lambda name: name == "rollout-0")
        assert is_gone(pid)


async def test_no_process_is_left_after_a_cancellation(tmp_path: Path) -> None:
    workers = []

    async def run() -> None:
        async with stage(tmp_path) as s:
            s.supervisor.spawn("rollout-0", "rollout")
            workers.append(os.pidfd_open((await s.hello())["pid"]))
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await run()
    await ended(workers[0])


async def test_workers_see_their_own_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    async with stage(tmp_path) as s:
        for name, gpus in {"trainer": "4", "rollout-1": "6", "rollout-2": "5", "reward-0": "4,5,6"}.items():
            s.supervisor.spawn(name, name.partition("-")[0])  # pyright: ignore[reportArgumentType]
            assert (await s.hello())["env"]["CUDA_VISIBLE_DEVICES"] == gpus


@pytest.mark.parametrize("ranks", [1, 2])
async def test_the_place_of_another_jobs_rank_is_not_taken_for_a_workers_own(tmp_path, monkeypatch, ranks):
    """As in a shell of torchrun or a pod of Kubeflow: the trainer would wait for that job's ranks."""
    placed = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}
    others = (
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "TORCHELASTIC_USE_AGENT_STORE",
    )
    for name, value in (placed | {"LOCAL_RANK": "3"} | dict.fromkeys(others, "1")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_KEY", "of the user's reward")
    async with stage(tmp_path, ranks=ranks) as s:
        s.supervisor.spawn("trainer", "trainer")
        hellos = [(await s.hello())["env"] for _ in range(ranks)]
    assert all(hello["MASTER_KEY"] == "of the user's reward" for hello in hellos)
    assert not any(name in hello for hello in hellos for name in others)
    assert not any(hello.get(name) == value for hello in hellos for name, value in placed.items())
    assert {hello.get("LOCAL_RANK") for hello in hellos} == ({None} if ranks == 1 else {"0", "1"})


async def test_the_ranks_of_a_trainer_live_and_die_together(tmp_path: Path) -> None:
    async with stage(tmp_path, ranks=3) as s:
        s.supervisor.spawn("trainer", "trainer")
        hellos = {hello["env"]["RANK"]: hello for hello in [await s.hello() for _ in range(3)]}
        assert sorted(hellos) == ["0", "1", "2"]
        assert len({hello["env"]["MASTER_PORT"] for hello in hellos.values()}) == 1
        assert all(hello["env"]["WORLD_SIZE"] == "3" for hello in hellos.values())
        assert hellos["0"]["argv"] == hellos["2"]["argv"]
        port = int(hellos["0"]["env"]["MASTER_PORT"])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))  # nobody else gets it before the first rank listens
        socket.create_server(("127.0.0.1", port)).close()  # as that does
        os.kill(hellos["1"]["pid"], signal.SIGTERM)
        assert (await s.exits.get()).exit_code == -signal.SIGTERM
        assert all(is_gone(hello["pid"]) for hello in hellos.values())
        assert s.exits.empty()


async def test_a_process_that_cannot_be_started_is_an_exit_in_words(tmp_path: Path) -> None:
    async with stage(tmp_path, host=(str(tmp_path / "no-python"),)) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        event = await s.exits.get()
        assert event.exit_code == CANNOT_START
        assert "no-python" in event.last_words


async def test_the_making_of_the_model_tells_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: size * "0a")
    (tmp_path / "prepare.py").write_text(
        "import sys\nprint('loading')\nprint('progress 0.5 warm start')\nprint('progress 1', sys.argv[2:])\n"
    )
    heard: list[tuple[float, str]] = []
    async with stage(tmp_path) as s:
        await s.supervisor.prepare_model(
            factory="f.py:make",
            directory=tmp_path / "model",
            seed=7,
            origin="of mine",
            on_progress=lambda *at: heard.append(at),
        )
    arguments = ["f.py:make", "--directory", str(tmp_path / "model"), "--seed", "7", "--origin", "of mine"]
    arguments += ["--maker", 8 * "0a", f"--parent={os.getpid()}"]
    assert heard == [(0.5, "warm start"), (1.0, str(arguments))]
    assert (tmp_path / "logs" / "prepare.log").read_text() == "loading\n"


MAKING = """
import asyncio, sys
from pathlib import Path
from tests.support.stage import stage

async def main(folder):
    async with stage(folder) as s:
        await s.supervisor.prepare_model(
            factory=f"{folder}/waits.py:make", directory=folder / "model", seed=7, on_progress=print
        )

asyncio.run(main(Path(sys.argv[1])))
"""


def test_the_maker_of_the_model_ends_with_a_controller_that_is_killed(tmp_path: Path) -> None:
    """The next controller makes the model again, and a maker that is left would be in its way."""
    os.mkfifo(tmp_path / "tells")
    (tmp_path / "prepare.py").write_text("from workers.models.prepare import main\nmain()\n")
    (tmp_path / "waits.py").write_text(
        "import os, signal\n"
        "def make(directory, *, seed, progress):\n"
        f"    told = open('{tmp_path}/tells', 'w')\n"
        "    print(os.getpid(), file=told, flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", MAKING, str(tmp_path)], cwd=ROOT) as controller:
        tells = os.open(tmp_path / "tells", os.O_RDWR)  # does not wait for who opens it
        assert select.select([tells], [], [], LIMIT_S)[0]
        maker = int(os.read(tells, 64))
        os.close(tells)
        controller.kill()
    assert has_ended(maker, limit_s=LIMIT_S)


async def test_a_factory_may_write_a_line_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("print('x' * (3 << 20))\nprint('progress 1 done')\n")
    heard: list[tuple[float, str]] = []
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as s:
        await s.supervisor.prepare_model(
            factory="f.py:make",
            directory=tmp_path / "model",
            seed=7,
            on_progress=lambda *at: heard.append(at),
        )
    assert heard == [(1.0, "done")]
    assert (tmp_path / "logs" / "prepare.log").read_text() == "x" * (3 << 20) + "\n"


@pytest.mark.parametrize(("lacking", "way"), [([], "Mend"), (["torch"], r"lacks torch: .+\[workers\]'")])
async def test_a_model_that_cannot_be_made_fails_with_the_end_of_its_log(tmp_path, monkeypatch, lacking, way):
    monkeypatch.setattr(install, "missing", lambda extras: lacking)
    (tmp_path / "prepare.py").write_text("raise SystemExit('no space for it')\n")
    async with stage(tmp_path) as s:
        with pytest.raises(RunError, match=rf"(?s)f.py:make ended with code 1.*{way}.*no space for it"):
            await s.supervisor.prepare_model(
                factory="f.py:make", directory=tmp_path / "model", seed=7, on_progress=lambda *at: None
            )


@pytest.mark.parametrize("session", [False, True])
async def test_a_factory_that_fails_is_told_of_though_what_it_has_started_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: bool
) -> None:
    """It holds the pipe open, whose end is not waited for; the last lines are read."""
    monkeypatch.setattr(supervisor, "LAST_LINES_S", 0.2 if session else LIMIT_S)  # else it is killed with it
    started = f"subprocess.Popen(['sleep', '600'], start_new_session={session}).pid"
    (tmp_path / "prepare.py").write_text(
        f"import subprocess\nprint('progress 0.5', {started}, flush=True)\n"
        "raise SystemExit('no space for it')\n"
    )
    heard: list[str] = []
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as s:
        with pytest.raises(RunError, match=r"(?s)f.py:make ended with code 1.*no space for it"):
            await s.supervisor.prepare_model(
                factory="f.py:make",
                directory=tmp_path / "model",
                seed=7,
                on_progress=lambda _, text: heard.append(text),
            )
    if session:
        os.kill(int(heard[0]), signal.SIGKILL)


async def test_a_worker_whose_log_was_moved_away_is_an_exit_like_any_other(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.supervisor.spawn("rollout-0", "rollout")
        hello = await on.hello()
        (tmp_path / "logs" / "rollout-0.log").rename(tmp_path / "moved.log")
        os.kill(hello["pid"], signal.SIGKILL)
        exit = await on.exits.get()
        assert (exit.name, exit.exit_code) == ("rollout-0", -signal.SIGKILL)
        assert "its log cannot be read" in exit.last_words


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EAGAIN, "`ulimit -u`"), (errno.ENOMEM, "Free memory"), (errno.EMFILE, "`ulimit -n`")],
)
async def test_a_worker_for_which_there_is_no_room_is_told_once_with_what_to_do(
    tmp_path, monkeypatch, number, remedy
):
    told: list[str] = []
    starting = asyncio.create_subprocess_exec
    refusals = iter(range(3))

    async def refusing(*command, **options):
        for _ in refusals:
            raise OSError(number, os.strerror(number))
        return await starting(*command, **options)

    monkeypatch.setattr("controller.host.supervisor.RETRY_S", 0)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refusing)
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as on:
        on.supervisor._on_warning = told.append
        on.supervisor.spawn("leaves", "reward")
        assert "about to do my thing" in (await on.exits.get()).last_words
    (text,) = told
    assert text.startswith(f"leaves cannot be started yet, and is tried again: [Errno {number}]")
    assert remedy in text


async def test_a_worker_for_which_there_is_never_room_holds_up_no_end(tmp_path, monkeypatch):
    is_told = asyncio.Event()

    async def refusing(*command, **options):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("controller.host.supervisor.RETRY_S", 0)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refusing)
    async with asyncio.timeout(LIMIT_S), stage(tmp_path) as on:
        on.supervisor._on_warning = lambda text: is_told.set()
        on.supervisor.spawn("rollout-0", "rollout")
        await is_told.wait()
        await on.supervisor.stop(0.0)
        exit = on.exits.get_nowait()
    assert (exit.name, exit.exit_code) == ("rollout-0", CANNOT_START)
