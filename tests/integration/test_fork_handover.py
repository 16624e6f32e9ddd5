"""What a forked worker may still do when the controller is killed: hand over what it has."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.integration.test_supervisor import LIMIT_S, ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

ROOT = str(Path(__file__).resolve().parents[2])
LIGHT = "def renew(): ..."
SERVER = """
from workers.host import fork_server
fork_server.MODULES, fork_server.RENEWAL = (), "light"
fork_server.main()
"""
WORKER = """
import os, sys, threading, time
from pathlib import Path
from workers.link.parent import outlive_parent
folder, name = Path(sys.argv[1]), sys.argv[2]
if name == "outlives":
    over = threading.Event()
    outlive_parent(os.getppid(), over.set, limit_s=600)
(folder / f"{name}.began").write_text("")
(over if name == "outlives" else threading.Event()).wait()
time.sleep(0.2)  # to write takes a while
(folder / f"{name}.handed").write_text("")
"""
CONTROLLER = """
import asyncio, os, sys
from pathlib import Path
from controller.host import forks

async def main(folder):
    forks.COMMAND = (sys.executable, "-P", str(folder / "server.py"))
    run = forks.Forks(dict(os.environ))
    started = []
    for name in ("outlives", "ends"):
        command = ["-P", str(folder / "worker.py"), str(folder), name]
        started.append(await run.start(command, dict(os.environ), output=1, error=2))
    while len(list(folder.glob("*.began"))) < 2:
        await asyncio.sleep(0.01)
    print(*(process.pid for process in started), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    run.close()
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("end", ["is killed", "closes"])
async def test_a_worker_hands_over_after_the_death_of_the_controller_and_not_after_the_run(tmp_path, end):
    for name, text in (("light", LIGHT), ("server", SERVER), ("worker", WORKER)):
        (tmp_path / f"{name}.py").write_text(text)
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, str(tmp_path), stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, str(tmp_path)])},
    )  # fmt: skip
    assert controller.stdout is not None
    assert controller.stdin is not None
    async with asyncio.timeout(LIMIT_S):
        pids = map(int, (await controller.stdout.readline()).split())
        ends = [os.pidfd_open(pid) for pid in pids]
        if end == "is killed":
            controller.kill()
        else:
            controller.stdin.write(b"close\n")
        for one in ends:
            await ended(one)
        if end == "closes":
            controller.kill()
        await controller.wait()
    handed = {path.name for path in tmp_path.glob("*.handed")}
    assert handed == ({"outlives.handed"} if end == "is killed" else set())
