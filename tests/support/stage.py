"""A stage for the supervisor of workers: it starts processes that say who they are, and then stand still."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

from controller.core.events import WorkerExited
from controller.host.supervisor import Supervisor
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)

# Says who it is on a fifo, then does what its name says. The arguments are those of workers.host.
WORKER = """
import json, os, signal, subprocess, sys
name = sys.argv[sys.argv.index("--name") + 1]
child = subprocess.Popen(["sleep", "600"]) if name == "with-child" else None
said = {"pid": os.getpid(), "child": child and child.pid, "argv": sys.argv[1:], "env": dict(os.environ)}
with open(os.environ["PORCH"], "w") as porch:
    porch.write(json.dumps(said) + "\\n")
print("about to do my thing", flush=True)
if name == "fails":
    raise SystemExit("\\n".join(f"line {i}" for i in range(40)))
if name != "leaves":
    signal.pause()
"""


class Stage:
    """A supervisor, what it reported, and the words of its workers."""

    def __init__(self, supervisor: Supervisor, porch: asyncio.StreamReader) -> None:
        self.supervisor = supervisor
        self._porch = porch
        self.exits: asyncio.Queue[WorkerExited] = asyncio.Queue()

    async def hello(self) -> dict:
        return json.loads(await self._porch.readline())


@asynccontextmanager
async def stage(
    folder: Path,
    *,
    ranks: int = 1,
    host: tuple[str, ...] = (),
    is_forking: bool = False,
    device: str = "auto",
    import_paths: tuple[str, ...] = ("/somewhere",),
) -> AsyncIterator[Stage]:
    script = folder / "worker.py"
    script.write_text(WORKER)
    porch = folder / "porch"
    os.mkfifo(porch)
    os.environ["PORCH"] = str(porch)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader),
        os.fdopen(os.open(porch, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0),
    )
    (folder / "logs").mkdir()
    settings = WorkerSettings(
        run_dir=str(folder), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        rollout=RolloutSettings(threads=3, device=device), trainer=TrainerSettings(ranks=ranks),
        import_paths=import_paths,
    )  # fmt: skip
    exits: list[Callable[[WorkerExited], None]] = []
    with closing(transport), ExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            supervisor = Supervisor(
                tasks,
                endpoint="ipc://nowhere",
                logs=folder / "logs",
                settings=settings,
                on_exit=lambda event: exits[0](event),
                host=host or (sys.executable, str(script)),
                prepare=(sys.executable, str(folder / "prepare.py")),
                is_forking=is_forking,
            )
            on_stage = Stage(supervisor, reader)
            exits.append(on_stage.exits.put_nowait)
            stack.callback(supervisor.close)
            yield on_stage
            await supervisor.stop(0)
