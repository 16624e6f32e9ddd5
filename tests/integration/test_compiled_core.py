"""The compiled core decides as its sources do, and either goes on with what the other began."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from test_killed_runs import check_whole

from controller.cli.compile import compile_core
from controller.compiled.build import why_not_here
from controller.compiled.finder import SWITCH

pytestmark = [
    pytest.mark.costly,  # two minutes of the compiler
    pytest.mark.skipif(bool(why_not_here()), reason=why_not_here()),
]
ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).parent
LIMIT_S = 900
SWEEP = """
import json
from controller.core import core
from tests.support import agent_fault_sweep, fault_sweep
runs = [fault_sweep.one(seed) for seed in range(12)] + [agent_fault_sweep.one(seed) for seed in range(6)]
print(json.dumps([core.__file__, [[run.failure, run.counts, run.events] for run in runs]]))
"""
SHOWN = """
import sys
import pytest
from controller.core import core
print(core.__file__)
files = [f"tests/unit/controller/view/test_{name}.py" for name in ("shown_run", "pictures")]
sys.exit(pytest.main(["-n", "0", *files]))
"""
PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from test_killed_runs import settings
from controller import Controller
from controller.core import core

async def main(run, last):
    async with Controller(settings(run)) as controller:
        async for step in controller.train():
            if step.policy_version == last:
                os.kill(os.getpid(), signal.SIGKILL)

print(core.__file__, flush=True)
asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""

COLOCATED = """
import asyncio, sys
from pathlib import Path
from test_colocated_run import settings
from test_whole_runs import run_to_the_end
from controller.core import core

print(core.__file__, flush=True)
asyncio.run(run_to_the_end(settings(Path(sys.argv[1]), steps=2)))
"""
REPLAY = """
import sys
from pathlib import Path
from controller.durability.recording import Recording
from controller.durability.replay import replay

with Recording(Path(sys.argv[1])) as recording:
    assert replay(recording).is_equal, replay(recording)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The folder of builds, with one of these sources."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, str(folder))
        compile_core()
    return folder


async def run(program: str, *arguments: object, switch: object) -> tuple[int, str]:
    """Exit code and output of a program whose core is the sources', or a compiled one."""
    environment = os.environ | {SWITCH: str(switch), "PYTHONPATH": os.pathsep.join(map(str, [ROOT, HERE]))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *map(str, arguments),
        cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_compilation_that_is_stopped_leaves_nothing_behind(tmp_path, number):
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {SWITCH: str(tmp_path / "builds"), "TMPDIR": str(tmp_path / "tmp")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, ROOT / "launch.py", "compile", env=environment, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    compilers: list[psutil.Process] = []
    async with asyncio.timeout(LIMIT_S):
        while not compilers:
            await asyncio.sleep(0.05)
            below = psutil.Process(process.pid).children(recursive=True)
            compilers = [one for one in below if "compiler.py" in " ".join(one.cmdline())]
        process.send_signal(number)
        output, _ = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in output
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in compilers)
    assert [*(tmp_path / "tmp").iterdir()] == []


async def test_it_decides_as_its_sources_do_under_all_faults(compiled):
    found = {}
    for switch in ("0", compiled):
        code, output = await run(SWEEP, switch=switch)
        assert code == 0
        file, found[switch] = json.loads(output.splitlines()[-1])
        assert file.endswith(".py") == (switch == "0")
    assert found["0"] == found[compiled]
    assert not any(failure for failure, _, _ in found["0"])
    assert sum(counts.get("controller_deaths", 0) for _, counts, _ in found["0"])


async def test_a_run_goes_on_from_one_to_the_other_and_back(compiled, tmp_path):
    for switch, last in ((compiled, 3), ("0", 6), (compiled, 99)):
        code, output = await run(PROGRAM, tmp_path, last, switch=switch)
        assert output.startswith(str(compiled)) == (switch == compiled)
        assert code == (0 if last == 99 else -9)
    check_whole(tmp_path / "run")


async def test_the_sources_replay_its_run_of_one_device(compiled, tmp_path):
    code, output = await run(COLOCATED, tmp_path, switch=compiled)
    assert output.startswith(str(compiled))
    assert code == 0, output
    code, output = await run(REPLAY, tmp_path / "run", switch="0")
    assert code == 0, output


async def test_the_view_shows_it(compiled):
    code, output = await run(SHOWN, switch=compiled)
    assert output.startswith(str(compiled))
    assert code == 0, output
