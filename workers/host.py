"""The main of every worker process: `python -m workers.host ADDRESS --role rollout --name NAME`.

Invariants: the process ends with 0 if it was told to leave, 1 if it failed (its WorkerFailed says why), 2 if
it could not attach; the first SIGINT or SIGTERM hands everything back and leaves, the second ends the process
at once; only the packages that the role needs are imported.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from protocol.errors import ConfigError, RunError, StaleFlowError
from protocol.messages import Attach, Detach, Role, WorkerFailed
from protocol.settings import WorkerSettings, load_settings
from workers.link import Link, LinkClosed
from workers.parent import die_with_parent

logger = logging.getLogger("workers")

FLUSH_S = 5.0  # for the last words to be acknowledged
MAX_REASON_CHARS = 16_000


class Worker(Protocol):
    """What a role does with its link."""

    async def run(self, link: Link) -> None:
        """Serve until drained."""
        ...

    def drain(self) -> None:
        """Hand back what is in hand and return from `run`."""
        ...


def main(arguments: list[str] | None = None) -> None:
    """Be a worker; ends the process."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.host", description="One worker of a StaleFlow run."
    )
    parser.add_argument("address", help="endpoint of the controller, or its run directory")
    parser.add_argument("--role", required=True, choices=("rollout", "reward", "trainer"))
    parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}", help="shown to people")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the parent process ends")
    parser.add_argument("--settings-file", help="settings of a trainer rank > 0, which does not attach")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if options.die_with_parent:
        die_with_parent()
    if options.settings_file:
        sys.exit(_follow(Path(options.settings_file)))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        sys.exit(runner.run(serve(options.address, options.role, options.name)))


async def serve(address: str, role: Role, name: str) -> int:
    """Attach, work, leave; the exit code."""
    stop = _Stop()
    attach = Attach(role, name, os.getpid(), socket.gethostname())
    try:
        link = await Link.attach(address, attach)
    except ConfigError as error:
        logger.error("%s", error)
        return 2
    except (LinkClosed, asyncio.CancelledError) as error:
        logger.info("Leaving before the work began: %s", error or "a signal came.")
        return 0
    try:
        return await _work(link, role, stop)
    finally:
        await link.aclose()


async def _work(link: Link, role: Role, stop: "_Stop") -> int:
    try:
        worker = _make_worker(role, link.settings)
        stop.use(worker.drain)
        await worker.run(link)
        link.send(Detach("The worker was told to leave by a signal."))
        await link.flush(FLUSH_S)
        return 0
    except Exception as raised:  # the top of the process
        error = _first_cause(raised)
        if isinstance(error, LinkClosed):
            logger.log(logging.ERROR if error.is_fault else logging.INFO, "%s", error)
            return int(error.is_fault)
        if isinstance(error, ConfigError | RunError):
            logger.error("%s", error)
            reason = str(error)
        else:
            logger.exception("The worker failed.", exc_info=raised)
            reason = (
                f"The {role} worker failed with {type(error).__name__}: {error}. This was not expected; its "
                "log has the traceback."
            )
    with contextlib.suppress(StaleFlowError):  # the controller may be gone as well; the log has it all
        link.send(WorkerFailed(reason[:MAX_REASON_CHARS]))
        await link.flush(FLUSH_S)
    return 1


def _make_worker(role: Role, settings: WorkerSettings) -> Worker:
    sys.path[:0] = [path for path in settings.import_paths if path not in sys.path]
    directory = model_directory(settings)
    if role == "reward":
        # transformers imports torch wherever it is installed: 2 s and 200 MB that tokenizing does not need
        sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from workers.reward import RewardWorker

        return RewardWorker(settings, directory)
    threads = settings.rollout.threads if role == "rollout" else settings.trainer.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported, below
    if role == "rollout":
        from workers.rollout import RolloutWorker

        return RolloutWorker(settings, directory)
    from workers.trainer import TrainerWorker

    return TrainerWorker(settings, directory)


def _follow(file: Path) -> int:
    """Be a trainer rank above 0: no link of its own, it follows rank 0."""
    try:
        settings = load_settings(file.read_text())
        sys.path[:0] = [path for path in settings.import_paths if path not in sys.path]
        os.environ["OMP_NUM_THREADS"] = str(settings.trainer.threads)
        from workers.trainer import follow

        follow(settings, model_directory(settings))
    except StaleFlowError as error:
        logger.error("%s", error)
        return 1
    return 0


def model_directory(settings: WorkerSettings) -> str:
    """Where the model lies: `model.path`, in the run directory if a factory makes it there."""
    base = Path(settings.run_dir) if settings.model.factory is not None else Path.cwd()
    return str(base / settings.model.path)


class _Stop:
    """What signals do: the first drains (or cancels what comes before the work), the second ends the
    process."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._leave: Callable[[], Any] = task.cancel
        self._is_leaving = False
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def use(self, drain: Callable[[], None]) -> None:
        self._leave = drain

    def _on_signal(self, number: int) -> None:
        if self._is_leaving:
            logger.warning("A second signal: ending at once.")
            os._exit(128 + number)
        self._is_leaving = True
        logger.info("%s: handing back what is in hand, then leaving.", signal.Signals(number).name)
        self._leave()


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
