"""Local worker processes: starts them, reports their exits, and leaves none behind.

Invariants: a local worker is started with the same command that a person would type on another machine, or
forked from a process that has made this command's imports; it has a session of its own, so Ctrl-C reaches
only the controller; its exit is reported once, with the end of its log; the ranks of a trainer live and die
together; after `stop`, or a cancellation, no process is left but the fork server, which waits a minute for
the next run.
"""

import asyncio
import errno
import logging
import os
import re
import secrets
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from controller.config.devices.gpu_shares import gpu_shares
from controller.core.events import WorkerExited
from controller.host.forks import ForkedProcess, Forks, ForkServerLost, has_accelerator, may_fork
from controller.host.log_file import ProcessLog
from controller.siblings import packages_to_install
from protocol.errors import RunError
from protocol.importing import python_path
from protocol.machine.visible_gpus import visible_gpus
from protocol.messages import Role
from protocol.model_files import remove_unfinished
from protocol.settings import WorkerSettings
from protocol.wire.descriptors import RETRY_S, are_spent

CANNOT_START = 127  # exit code for a process that the system would not start, as shells have it
NO_ROOM = (errno.EAGAIN, errno.ENOMEM)  # for another process, now
MORE_FILES = "Allow more open files (`ulimit -n`)."
MORE_OF = {
    errno.EAGAIN: "Allow more processes and threads (`ulimit -u`, or the limit of pids of the container).",
    errno.ENOMEM: "Free memory, or start fewer workers on this machine.",
}
CLOSE_GRACE_S = 10.0  # for workers to leave by themselves when the run is over
FAILED_GRACE_S = 2.0  # the same when it failed or was left early: somebody waits for the prompt
MAX_LINE_BYTES = 1 << 20
KILLED_S = 5.0  # in which a process ends that was killed
LAST_LINES_S = 5.0  # in which what a factory has written is read, once it has ended
# -P: a folder of the user's that is called `workers` must not hide ours
HOST = (sys.executable, "-P", "-m", "workers.host")
PREPARE = (sys.executable, "-P", "-m", "workers.models.prepare")
OTHER_JOBS = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
"""Variables with which torchrun, or Kubeflow in a pod, places the ranks of a job of its own."""
PROGRESS = re.compile(r"progress (\d+(?:\.\d+)?) ?(.*)")

Progress = Callable[[float, str], None]
logger = logging.getLogger("staleflow.supervisor")


class _Worker:
    """The processes of one worker: one, or the ranks of a trainer."""

    def __init__(self) -> None:
        self.processes: list[Process | ForkedProcess] = []
        self.endings: list[tuple[int, ProcessLog]] = []  # in the order in which they ended
        self.is_doomed = False
        self._held: socket.socket | None = None

    def hold_port(self) -> int:
        """Reserve a port until the first rank listens at it, seconds from now.

        Raises: OSError.
        """
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the rank sets it
        self._held.bind(("127.0.0.1", 0))
        return int(self._held.getsockname()[1])

    def let_go(self) -> None:
        """Release the port: all processes have ended."""
        if self._held is not None:
            self._held.close()

    def kill(self) -> None:
        self.is_doomed = True
        for process in self.processes:
            _kill_session(process)

    async def watch(self, process: Process | ForkedProcess, log: ProcessLog) -> None:
        code = await process.wait()
        self.endings.append((code, log))
        if code:
            self.kill()  # else the other ranks would wait for this one for ever

    def exit(self) -> tuple[int, str]:
        """Exit code and last words of the process that ended the others, or of the first if all is well."""
        code, log = next((ending for ending in self.endings if ending[0]), self.endings[0])
        return code, log.last_words()


class Supervisor:
    """Starts and ends the local workers of one run."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        *,
        endpoint: str,
        logs: Path,
        settings: WorkerSettings,
        on_exit: Callable[[WorkerExited], None],
        key: Path | None = None,
        host: tuple[str, ...] = HOST,
        prepare: tuple[str, ...] = PREPARE,
        is_forking: bool = False,
        on_warning: Callable[[str], None] = logger.warning,
    ) -> None:
        """`tasks` holds one task per worker; cancelling it kills them all.

        `key`: the key file of workers; `host` and `prepare`: the commands that start a worker and make the
        initial model; `is_forking`: fork workers if possible; `on_warning(text)`: called if that fails, or a
        worker cannot be started yet.
        """
        self._tasks = tasks
        self._endpoint = endpoint
        self._logs = logs
        self._settings = settings
        self._on_exit = on_exit
        self._on_warning = on_warning
        self._key = key
        self._host, self._prepare = host, prepare
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, _Worker] = {}
        may = {"rollout": may_fork(settings.rollout), "trainer": may_fork(settings.trainer)}
        self._forked = {role for role, may_be in may.items() if may_be and is_forking}
        self._forks: Forks | None = None
        self._gpus = gpu_shares(settings, visible_gpus(os.environ))
        if self._forked:
            self._forked |= set() if has_accelerator() else {"reward", "agent"}
            self._open_forks()

    def spawn(self, name: str, role: Role, delay_s: float = 0.0) -> None:
        """Start a worker, `delay_s` seconds from now; its end is reported by `on_exit`."""
        life = self._tasks.create_task(self._live(name, role, delay_s), name=f"worker {name}")
        self._lives[name] = life

    def kill(self, name: str) -> None:
        """Kill the processes of this name and those they started, if there are any."""
        if name in self._workers:
            self._workers[name].kill()

    async def stop(self, grace_s: float, *, importing: Callable[[str], bool] = lambda _: False) -> None:
        """Wait for the workers to end, `grace_s` at most, then kill the rest; none is left on return.

        `importing(name)`: whether a worker has not attached yet; it has no work in hand, and is killed now.
        """
        for name, life in self._lives.items():
            if name not in self._workers:
                life.cancel()  # it is waiting for its delay
            elif importing(name):
                self._workers[name].kill()
        lives = list(self._lives.values())
        if lives:
            _, late = await asyncio.wait(lives, timeout=grace_s)
            for worker in self._workers.values():
                worker.kill()
            if late:
                _, stuck = await asyncio.wait(late, timeout=KILLED_S)
                for life in stuck:
                    life.cancel()
                if stuck:  # the process that forks does not answer: nobody waits for it any more
                    self.close()
                    await asyncio.wait(stuck)
        self.close()

    def close(self) -> None:
        """Disconnect from the fork server; after `stop`, or when the tasks were cancelled."""
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    async def prepare_model(
        self, *, factory: str, directory: Path, seed: int, on_progress: Progress, origin: str = ""
    ) -> None:
        """Make the initial model in a process of its own; `origin` is noted beside it, unless empty.

        `on_progress(fraction, text)` is called for its `progress <fraction> <text>` lines.
        Raises: RunError with the end of its log if it fails.
        """
        log = ProcessLog(self._logs / "prepare.log")
        maker = secrets.token_hex(8)
        arguments = ["--factory", factory, "--directory", str(directory), "--seed", str(seed)]
        arguments += ["--origin", origin, "--maker", maker]
        arguments += ["--private"] if self._settings.is_private else []
        environment = self._environment(self._settings.trainer.threads)
        read, write = os.pipe()
        with log.open() as file, os.fdopen(read, "rb", 0) as said:
            with os.fdopen(write, "wb", 0) as saying:
                process = await self._run(
                    [*self._prepare, *arguments], environment, output=saying, error=file,
                    is_forked="trainer" in self._forked, parent="--parent={}",
                )  # fmt: skip
            reading = asyncio.create_task(_take_lines(said, file, on_progress), name="read the factory")
            ending = asyncio.create_task(process.wait(), name="wait for the factory")
            try:
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() or reading.exception() is None:
                    await asyncio.wait({ending})
                    _kill_session(process)  # what it has started may hold the pipe open
                    await asyncio.wait({reading}, timeout=LAST_LINES_S)
            finally:
                _kill_session(process)
                reading.cancel()
                await asyncio.wait({reading, ending})
                remove_unfinished(directory, killed=maker)
            if not reading.cancelled():
                reading.result()
        code = ending.result()
        if code:
            way = packages_to_install() or "Mend the factory, or set model.path to an existing model"
            raise RunError(
                f"Making the initial model with {factory} ended with code {code}; expected 0 and a complete "
                f"{directory}. {way}. The end of {log.path}:\n{log.last_words()}"
            )

    async def _live(self, name: str, role: Role, delay_s: float) -> None:
        """From the start of a worker to the report of its end."""
        if delay_s:
            await asyncio.sleep(delay_s)
        worker = self._workers[name] = _Worker()
        try:
            async with asyncio.TaskGroup() as ranks:
                for log, arguments, environment in self._commands(worker, name, role):
                    process = await self._start(
                        worker, log, arguments, environment, is_forked=role in self._forked
                    )
                    worker.processes.append(process)
                    if worker.is_doomed:
                        worker.kill()
                    ranks.create_task(worker.watch(process, log), name=f"watch {name}")
        except* OSError as errors:
            worker.kill()
            code, words = CANNOT_START, f"The process could not be started: {errors.exceptions[0]}."
        else:
            code, words = worker.exit()
        finally:
            worker.kill()  # also processes that a finished worker left in its session
            for process in worker.processes:
                await process.wait()  # also when cancelled: an unreaped child outlives its event loop
            worker.let_go()
            del self._workers[name]
            if self._lives[name] is asyncio.current_task():
                del self._lives[name]
        self._on_exit(WorkerExited(name, role, code, words))

    def _commands(
        self, worker: _Worker, name: str, role: Role
    ) -> list[tuple[ProcessLog, list[str], dict[str, str]]]:
        """For each process of a worker: its log, its arguments and its environment."""
        threads = {"rollout": self._settings.rollout.threads, "trainer": self._settings.trainer.threads}
        arguments = [self._endpoint, "--role", role, "--name", name]
        arguments += [f"--key={self._key}"] if self._key else []
        environment = self._environment(threads.get(role, 1))
        environment |= {} if role in self._forked else self._gpus.environment(role, name)
        ranks = self._settings.trainer.ranks if role == "trainer" else 1
        if ranks == 1:
            return [(ProcessLog(self._logs / f"{name}.log"), arguments, environment)]
        environment |= {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(worker.hold_port()),
        }
        return [
            (
                ProcessLog(self._logs / (f"{name}.rank{rank}.log" if rank else f"{name}.log")),
                arguments,
                environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]

    async def _start(
        self,
        worker: _Worker,
        log: ProcessLog,
        arguments: list[str],
        environment: dict[str, str],
        *,
        is_forked: bool,
    ) -> Process | ForkedProcess:
        """Start one process of a worker; try again while the system has no room for it.

        Raises: OSError if it cannot be started, or has no room and the worker is to end.
        """
        is_told = False
        while True:
            try:
                with log.open() as file:
                    return await self._run(
                        [*self._host, *arguments], environment, output=file, error=file,
                        is_forked=is_forked, parent="--parent={}",
                    )  # fmt: skip
            except OSError as error:
                has_no_room = are_spent(error) or error.errno in NO_ROOM
                if not has_no_room or worker.is_doomed:
                    raise
                if not is_told:
                    name, more = log.path.stem, MORE_OF.get(error.errno or 0, MORE_FILES)
                    self._on_warning(f"{name} cannot be started yet, and is tried again: {error}. {more}")
                is_told = True
            await asyncio.sleep(RETRY_S)

    async def _run(
        self,
        command: list[str],
        environment: dict[str, str],
        *,
        output: IO[bytes],
        error: IO[bytes],
        is_forked: bool,
        parent: str = "",
    ) -> Process | ForkedProcess:
        """Start a process; `parent` is the argument for the pid of the process that it has to end with."""
        if is_forked and self._forks is not None:
            tie = [parent.format(self._forks.parent)] if parent else []
            try:
                return await self._forks.start(
                    [*command[1:], *tie], environment, output=output.fileno(), error=error.fileno()
                )
            except ForkServerLost as lost:
                if self._forks is not None:  # else another worker has told of it
                    self._on_warning(f"Workers of this run are executed, not forked, from now on. {lost}")
                self.close()
        tie = [parent.format(os.getpid())] if parent else []
        return await asyncio.create_subprocess_exec(
            *command, *tie, stdin=DEVNULL, stdout=output, stderr=error, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def _open_forks(self) -> None:
        environment = self._environment(1) | {"PYTHONPATH": python_path()}
        try:
            self._forks = Forks(environment)
        except OSError as error:  # workers can be started without it
            self._on_warning(f"Workers of this run are executed, not forked: the fork server failed: {error}")

    def _environment(self, threads: int) -> dict[str, str]:
        """The controller's environment, with the user's import paths and limits of threads.

        Without the place of another job's rank: a trainer would wait for that job's others.
        """
        given = {name: value for name, value in os.environ.items() if not OTHER_JOBS.fullmatch(name)}
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        return given | limits | {
            "PYTHONPATH": python_path(*self._settings.import_paths),
            "PYTHONUNBUFFERED": "1",  # so that the log of a killed worker is complete
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip


async def _take_lines(said: IO[bytes], log: IO[bytes], on_progress: Progress) -> None:
    """Tell the progress that a factory says; all its other lines go to its log."""
    async for line in _lines(said):
        if report := PROGRESS.fullmatch(line.decode(errors="replace").rstrip()):
            on_progress(float(report[1]), report[2])
        else:
            log.write(line)
            log.flush()


async def _lines(pipe: IO[bytes]) -> AsyncIterator[bytes]:
    """What is written to a pipe, to its end; a line beyond MAX_LINE_BYTES in pieces."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    with closing(transport):
        while True:
            try:
                line = await reader.readuntil()
            except asyncio.IncompleteReadError as end:
                line = end.partial
            except asyncio.LimitOverrunError as long:
                line = await reader.readexactly(long.consumed)
            if not line:
                return
            yield line


def _kill_session(process: Process | ForkedProcess) -> None:
    """SIGKILL to the process and everything in its group; nothing if all of it is gone."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, only zombies are left
        os.killpg(process.pid, signal.SIGKILL)
