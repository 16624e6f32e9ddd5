"""Workers that are forked live and end as those that are executed do."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from test_supervisor import LIMIT_S, ended, is_gone, stage

from controller.host import supervisor
from controller.host.forks import may_fork
from protocol.errors import RunError
from protocol.settings import RolloutSettings, TrainerSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def server_of(pid: int) -> psutil.Process:
    """The process that has forked this one."""
    parent = psutil.Process(pid).parent()
    assert parent is not None
    assert parent.ppid() == os.getpid()
    return parent


async def test_a_forked_worker_has_the_command_line_and_the_environment_of_an_executed_one(tmp_path: Path):
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        hello = await s.hello()
        pid = hello["pid"]
        parent = f"--parent={server_of(pid).pid}"
        assert hello["argv"] == ["ipc://nowhere", "--role", "rollout", "--name", "rollout-0", parent]
        assert os.getsid(pid) == pid != os.getsid(0)
        assert hello["env"]["OMP_NUM_THREADS"] == "3"
        assert hello["env"]["PYTHONPATH"].split(os.pathsep)[1] == "/somewhere"
        shown = " ".join(psutil.Process(pid).cmdline()).split()
        assert shown == [sys.executable, str(tmp_path / "worker.py"), *hello["argv"]]
        s.supervisor.spawn("reward-0", "reward")
        assert (await s.hello())["argv"][-1] == parent


async def test_reward_workers_are_executed_where_their_functions_may_use_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("controller.host.forks.ACCELERATORS", (tmp_path,))
    async with stage(tmp_path, is_forking=True, device="cpu") as s:
        s.supervisor.spawn("rollout-0", "rollout")
        server_of((await s.hello())["pid"])
        s.supervisor.spawn("reward-0", "reward")
        assert (await s.hello())["argv"][-1] == f"--parent={os.getpid()}"


async def test_ends_of_forked_workers_are_told_with_code_and_last_words(tmp_path: Path):
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        os.kill((await s.hello())["pid"], signal.SIGKILL)
        event = await s.exits.get()
        assert (event.name, event.exit_code) == ("rollout-0", -signal.SIGKILL)
        s.supervisor.spawn("fails", "rollout")
        event = await s.exits.get()
        assert event.exit_code == 1
        assert event.last_words.splitlines()[-1] == "line 39"
        s.supervisor.spawn("leaves", "rollout")
        event = await s.exits.get()
        assert (event.exit_code, event.last_words) == (0, "about to do my thing")


async def test_a_forked_worker_takes_what_it_had_started_with_it(tmp_path: Path):
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor.spawn("with-child", "rollout")
        child = os.pidfd_open((await s.hello())["child"])
        s.supervisor.kill("with-child")
        assert (await s.exits.get()).exit_code == -signal.SIGKILL
        await ended(child)


async def test_no_forked_process_is_left_after_a_cancellation(tmp_path: Path):
    workers = []

    async def run() -> None:
        async with stage(tmp_path, is_forking=True) as s:
            s.supervisor.spawn("rollout-0", "rollout")
            workers.append(os.pidfd_open((await s.hello())["pid"]))
            s.supervisor.spawn("rollout-1", "rollout")  # and is cancelled while it is being forked
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await run()
    await ended(workers[0])


async def test_forked_ranks_live_and_die_together(tmp_path: Path):
    async with stage(tmp_path, ranks=3, is_forking=True) as s:
        s.supervisor.spawn("trainer", "trainer")
        hellos = {hello["env"]["RANK"]: hello for hello in [await s.hello() for _ in range(3)]}
        assert sorted(hellos) == ["0", "1", "2"]
        os.kill(hellos["1"]["pid"], signal.SIGTERM)
        assert (await s.exits.get()).exit_code == -signal.SIGTERM
        assert all(is_gone(hello["pid"]) for hello in hellos.values())


async def test_the_model_is_made_by_a_fork(tmp_path: Path):
    (tmp_path / "prepare.py").write_text(
        "import os, torch\nprint('loading')\nprint('progress 0.5', torch.get_num_threads(), os.getppid())\n"
        "raise SystemExit('no space for the model')\n"
    )
    heard: list[tuple[float, str]] = []
    async with stage(tmp_path, is_forking=True) as s:
        with pytest.raises(RunError, match=r"(?s)f.py:make ended with code 1.*no space for the model"):
            await s.supervisor.prepare_model(
                factory="f.py:make", directory=tmp_path / "model", seed=7,
                on_progress=lambda *at: heard.append(at),
            )  # fmt: skip
        s.supervisor.spawn("rollout-0", "rollout")
        assert heard == [(0.5, f"1 {server_of((await s.hello())['pid']).pid}")]


async def test_a_server_that_cannot_start_is_told_of_once_with_its_reason(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "rubbish")  # torch refuses to be imported
    told: list[str] = []
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor._on_warning = told.append
        for name in ("rollout-0", "rollout-1"):
            s.supervisor.spawn(name, "rollout")
        for _ in range(2):
            assert (await s.hello())["argv"][-1] == f"--parent={os.getpid()}"
    (text,) = told
    assert text.startswith(
        "Workers of this run are executed, not forked, from now on. The process that forks"
    )
    assert "Its last words: ValueError: Invalid log settings: rubbish" in text.partition("\n")[0]


async def test_without_the_server_its_workers_end_and_others_are_executed(tmp_path: Path, caplog):
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        pid = (await s.hello())["pid"]
        gone = os.pidfd_open(pid)
        server_of(pid).kill()
        assert (await s.exits.get()).exit_code == -signal.SIGKILL
        await ended(gone)
        s.supervisor.spawn("rollout-0", "rollout")
        assert (await s.hello())["argv"][-1] == f"--parent={os.getpid()}"
        assert "The process that forks workers has ended" in caplog.text
    (tmp_path / "again").mkdir()
    async with stage(tmp_path / "again", is_forking=True) as s:  # the next run has a new one
        s.supervisor.spawn("rollout-0", "rollout")
        assert server_of((await s.hello())["pid"])


async def test_a_server_that_does_not_answer_holds_no_end_up(tmp_path: Path, monkeypatch):
    """One worker waits to be forked, and the end of another is never told of."""
    monkeypatch.setattr(supervisor, "KILLED_S", 0.2)
    async with stage(tmp_path, is_forking=True) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        pid = (await s.hello())["pid"]
        gone, server = os.pidfd_open(pid), server_of(pid)
        server.suspend()
        try:
            s.supervisor.spawn("rollout-1", "rollout")
            await asyncio.sleep(0)
            async with asyncio.timeout(LIMIT_S):
                await s.supervisor.stop(0)
        finally:
            server.resume()
        await ended(gone)


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from test_supervisor import stage

async def main():
    async with stage(Path(sys.argv[1]), is_forking=True) as s:
        s.supervisor.spawn("with-child", "trainer")
        hello = await s.hello()
        print(hello["pid"], hello["argv"][-1].removeprefix("--parent="), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_controller_takes_the_server_and_the_forked_with_it(tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert controller.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        worker, server = map(int, (await controller.stdout.readline()).split())
        ends = [os.pidfd_open(pid) for pid in (worker, server)]
        controller.kill()
        await controller.wait()
        for end in ends:
            await ended(end)


IMPORTING = "import os, signal\nprint('importing', os.getpid(), flush=True)\nsignal.pause()\n"
STARTER = """
import os, subprocess, sys
from controller.host.forks import COMMAND
server = subprocess.Popen([*COMMAND, sys.argv[1], f"--parent={os.getpid()}"], pass_fds=[int(sys.argv[1])])
server.wait()
"""


async def test_a_server_that_still_imports_ends_with_the_controller(tmp_path: Path):
    (tmp_path / "uvloop.py").write_text(IMPORTING)  # the first module that it imports
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with door, theirs:
        controller = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTER, str(theirs.fileno()),
            stdout=asyncio.subprocess.PIPE, env=environment, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        assert controller.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            said, pid = (await controller.stdout.readline()).split()
            assert said == b"importing"
            server = psutil.Process(int(pid))
            end = os.pidfd_open(server.pid)
            controller.kill()
            await controller.wait()
            try:
                await ended(end)
            finally:
                with suppress(psutil.NoSuchProcess):
                    server.kill()


@pytest.mark.parametrize(
    ("settings", "is_forked"),
    [
        (RolloutSettings(device="cpu"), True),
        (RolloutSettings(device="cuda:0"), False),
        (RolloutSettings(device="cpu", engine="vllm"), False),
        (RolloutSettings(device="cpu", engine="mine:make"), False),
        (TrainerSettings(device="cpu"), True),
        (TrainerSettings(device="cuda"), False),
        (TrainerSettings(device="cpu", engine="mine:Trainer"), False),
    ],
)
def test_what_is_forked(settings: RolloutSettings | TrainerSettings, is_forked: bool):
    assert may_fork(settings) == is_forked


def test_a_machine_with_an_accelerator_forks_only_what_is_told_to_stay_away_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.host.forks.ACCELERATORS", (tmp_path,))
    assert not may_fork(TrainerSettings(device="auto"))
    assert may_fork(TrainerSettings(device="cpu"))


SHOWS_STRATEGIES = """
import json, os, sys
import strategies
with open(os.environ["PORCH"], "w") as porch:
    porch.write(json.dumps({"found": strategies.__file__}) + "\\n")
"""


async def test_a_forked_worker_imports_ours_where_the_user_has_a_module_of_that_name(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "strategies.py").write_text("raise SystemExit('mine')")
    (tmp_path / "shows.py").write_text(SHOWS_STRATEGIES)
    host, mine = (sys.executable, str(tmp_path / "shows.py")), (str(tmp_path / "mine"),)
    async with stage(tmp_path, is_forking=True, host=host, import_paths=mine) as s:
        s.supervisor.spawn("rollout-0", "rollout")
        found = (await s.hello())["found"]
        assert Path(found) == Path(supervisor.__file__).parents[2] / "strategies" / "__init__.py"
