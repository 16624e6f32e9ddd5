"""The main of every worker process: `python -m workers.host ADDRESS --role rollout --name NAME`.

Invariants: the process ends with 0 if it was told to leave, 1 if it failed (its WorkerFailed or its log says
why), 75 if no controller answered at an endpoint, which may be another by then, 2 if it could not attach for
another reason; the first SIGINT or SIGTERM hands all work back and leaves, the second ends the process at
once; only the packages that the role needs are imported. A worker that was attached by hand outlives its
controller: it looks for one at the same address until `controller.reattach_s` have passed, and attaches there
again; a rollout worker meanwhile continues to generate and later hands over its tokens, a trainer starts over
with all its ranks, as if restarted; these end with rank 0. A worker that the controller started ends with it;
a local rollout worker leaves its unfinished work to its successor.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from protocol.errors import (
    ConfigError,
    NoAnswer,
    NotFinite,
    PluginError,
    RunError,
    StaleFlowError,
    first_cause,
)
from protocol.files import OTHERS
from protocol.importing import cannot_import, hide_torch, put_users_first
from protocol.messages import Attach, Detach, Role, WorkerFailed
from protocol.plain_text import begin_and_end, begin_of, is_plain_line, plain_line
from protocol.segments import this_host
from protocol.settings import WorkerSettings
from protocol.stacks import dump_on_signal
from protocol.wire.descriptors import raise_limit
from protocol.wire.security import load_worker_key
from workers.host.find_model import find_model, model_directory
from workers.host.overrides import Overrides
from workers.host.stop import Stop
from workers.link.link import Link, LinkClosed
from workers.link.parent import die_with_parent, outlive_parent
from workers.rollout.handover import Handover, hand_over
from workers.rollout.unacknowledged import Unacknowledged

logger = logging.getLogger("workers")

FLUSH_S = 5.0  # for the last messages to be acknowledged
ATTEMPT_S = 5.0  # for the first attempt, before the address is looked up again; each has twice the last's
LONGEST_ATTEMPT_S = 20.0  # five round trips of a slow network, which a short attempt would never finish
HANDOVER_S = 10.0  # in which a local rollout worker writes its unfinished work
MOST_NAME_CHARS = 200  # that a controller takes
FINAL = PluginError | NotFinite  # the next life of the worker would fail alike
RETRY_S = 1.0  # between two attempts to find a controller again


class HostedWorker(Protocol):
    """The worker of a role."""

    async def run(self, link: Link) -> None:
        """Serve until drained."""
        ...

    def drain(self) -> None:
        """Hand back what is in hand and return from `run`."""
        ...


@runtime_checkable
class OutlivesLinks(Protocol):
    """A worker that keeps its unfinished work when its controller is gone: a rollout worker."""

    async def go_on(self, found: "asyncio.Task[Link]") -> None:
        """Work on without a controller until one is found."""
        ...

    def handover(self) -> tuple[Unacknowledged, int] | None:
        """The unfinished work after a cut link, and its policy version; None if there is none."""
        ...


def main(arguments: list[str] | None = None) -> None:
    """Run a worker; ends the process."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.host", description="One worker of a StaleFlow run."
    )
    parser.add_argument("address", help="endpoint of the controller, or its run directory")
    parser.add_argument("--role", required=True, choices=("rollout", "reward", "agent", "trainer"))
    parser.add_argument("--name", help="shown to people")
    parser.add_argument("overrides", nargs="*", help="of this worker's own section, as rollout.threads=2")
    parser.add_argument("--key", help="key file made by `launch.py keygen`")
    parser.add_argument("--parent", type=int, help="pid of the process that started this one, to end with")
    options = parser.parse_intermixed_args(arguments)
    put_users_first(if_safe=options.role in ("rollout", "trainer"))
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    dump_on_signal()
    raise_limit()
    if options.parent is not None:
        die_with_parent(options.parent)
    if options.role == "trainer" and int(os.environ.get("RANK", "0")):
        sys.exit(_follow(options.overrides))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        sys.exit(runner.run(serve(options)))


def _default_name() -> str:
    """A default name: of this process, or of a torchrun job over all its restarts."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"torchrun-{job}" if job else f"{socket.gethostname()}-{os.getpid()}"


def _in_order(source: str, name: str) -> str:
    """The name, if it can be sent. Raises: ConfigError."""
    if len(name) > MOST_NAME_CHARS or not is_plain_line(name):
        raise ConfigError(
            f"{source} is {begin_of(plain_line(name))!r}; expected one line of at most {MOST_NAME_CHARS} "
            "characters, in UTF-8 and without control characters."
        )
    return name


async def serve(options: argparse.Namespace) -> int:
    """Attach, work and leave; returns the exit code."""
    stop = Stop()
    try:
        adapt = Overrides(options.role, options.overrides)
        name = options.name or (load_worker_key(options.key).name if options.key else None)
        name = _in_order("--name", name or _default_name())
        attach = Attach(options.role, name, os.getpid(), _in_order("STALEFLOW_HOST", this_host()))
        host = _Host(options, attach, stop, adapt)
        link = await Link.attach(options.address, attach, key=options.key)
        _say_attached(options, link.name or attach.name, link.settings)
        while (code := await host.work(link)) is None:
            link = await host.find_again(link.settings.reattach_s)
            _say_attached(options, link.name or attach.name, link.settings)
    except ConfigError as error:
        if options.parent is None:
            print(error, file=sys.stderr)
        else:
            logger.error("%s", error)
        code = NoAnswer.EXIT_CODE if isinstance(error, NoAnswer) and "://" in options.address else 2
    except (LinkClosed, asyncio.CancelledError) as error:
        logger.info("Leaving before the work began: %s", str(error) or f"{stop.by} asks for it.")
        code = 0
    except Exception as raised:  # the engine failed while no controller was there to be told
        _in_words(options.role, first_cause(raised), raised)
        code = 1
    if code == 0 and options.role == "trainer":  # else its other ranks notice by themselves
        await asyncio.to_thread(_dismiss_ranks)
    return code


def _say_attached(options: argparse.Namespace, name: str, settings: WorkerSettings) -> None:
    """Report the attachment: to the person who started this worker, or to the log of a local one."""
    if options.parent is not None:
        logger.info("Attached to %s as %s.", options.address, name)
        return
    leave = "" if options.role == "trainer" else " Ctrl-C hands back what it has, and leaves."
    run = f" of the run {plain_line(settings.run_dir)}" if "://" in options.address else ""
    try:
        print(f"Attached to {options.address} as {name}, a {options.role} worker{run}.{leave}", flush=True)
    except OSError as error:  # its reader is gone, as after a lost connection; the worker goes on
        logger.warning("What this worker prints is lost from now on: %s.", error.strerror)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # it is flushed again at the end
        os.close(nowhere)


def _differ(one: WorkerSettings, other: WorkerSettings | None) -> bool:
    """Whether two settings make different workers; import paths do not count."""
    nowhere: dict[str, tuple[str, ...]] = {"import_paths": ()}
    return other is None or one.model_copy(update=nowhere) != other.model_copy(update=nowhere)


class _Host:
    """One worker over successive controllers."""

    def __init__(self, options: argparse.Namespace, attach: Attach, stop: Stop, adapt: Overrides) -> None:
        self._options, self._attach, self._stop, self._adapt = options, attach, stop, adapt
        self._worker: HostedWorker | None = None
        self._settings: WorkerSettings | None = None
        self._handover: Handover | None = None  # of a local rollout worker

    async def work(self, link: Link) -> int | None:
        """Serve one controller; returns the exit code, or None to look for a controller again."""
        role = self._attach.role
        link.on_drain = self._stop.on_request  # first: to fetch a model can take minutes
        try:
            settings = self._adapt(link.settings)
            if settings.is_private:
                os.umask(OTHERS)
            if self._options.parent is not None and role == "rollout":
                await self._succeed(link)
            # an engine takes long to make, and may hold a GPU: it goes on if nothing about it has changed
            if self._worker is None or role != "rollout" or _differ(settings, self._settings):
                self._worker = None
                directory = await find_model(settings, link, role)
                self._worker, self._settings = _make_worker(role, settings, directory), settings
            self._stop.use(self._worker.drain)
            await self._worker.run(link)
            await self._detach(link)
            return 0
        except asyncio.CancelledError:  # before the work began; untold, it would be awaited for minutes
            if self._stop.is_leaving:
                await self._detach(link)
            raise
        except Exception as raised:  # the top of the process
            error = first_cause(raised)
            if isinstance(error, LinkClosed):
                return self._after(error, link)
            reason = _in_words(role, error, raised)
            with contextlib.suppress(StaleFlowError):  # the controller may be gone too; the log has it all
                link.send(WorkerFailed(begin_and_end(reason), is_final=isinstance(error, FINAL)))
                await link.flush(FLUSH_S)
            return 1
        finally:
            await link.aclose()

    async def _detach(self, link: Link) -> None:
        link.send(Detach(f"The worker was told to leave by {self._stop.by}."))
        await link.flush(FLUSH_S)

    async def _succeed(self, link: Link) -> None:
        """Hand over the unfinished work of a predecessor of this name, and prepare to leave one's own."""
        self._handover = Handover(Path(link.settings.run_dir) / "handover" / self._attach.name)
        found = await asyncio.to_thread(self._handover.read)
        if found is not None:
            unacknowledged, policy_version = found
            unacknowledged.cut(link.peer, ())  # so that the next successor names it, too
            self._handover.write(unacknowledged, policy_version)
            await hand_over(link, unacknowledged, policy_version)
            if await link.flush(FLUSH_S):  # else it is kept for the next controller
                self._handover.clear()
        loop = asyncio.get_running_loop()

        def cut() -> None:
            loop.call_soon_threadsafe(link.cut, "The controller's process has ended.")

        outlive_parent(self._options.parent, cut, limit_s=HANDOVER_S)

    def _after(self, closed: LinkClosed, link: Link) -> int | None:
        if closed.may_reattach and self._handover and isinstance(self._worker, OutlivesLinks):
            left = self._worker.handover()
            try:
                if left is not None:
                    self._handover.write(*left)
            except OSError as error:
                logger.error("What this worker has in hand is lost and will be sampled again: %s", error)
        is_local = self._options.parent is not None
        if closed.may_reattach and not is_local and link.settings.reattach_s and not self._stop.is_leaving:
            logger.warning("%s Looking for it for %g s.", closed, link.settings.reattach_s)
            return None
        logger.log(logging.ERROR if closed.is_fault else logging.INFO, "%s", closed)
        return int(closed.is_fault)

    async def find_again(self, limit_s: float) -> Link:
        """A link to a controller at the same address. Raises: ConfigError if none comes in time."""
        task = asyncio.current_task()
        assert task is not None
        self._stop.use(task.cancel)
        if self._attach.role == "trainer":
            self._worker = None
            gc.collect()  # a model is full of cycles, and the next one needs the room
        looking = asyncio.create_task(self._look(limit_s), name="look for a controller")
        try:
            if isinstance(self._worker, OutlivesLinks):
                await self._worker.go_on(looking)
            return await looking
        finally:
            looking.cancel()

    async def _look(self, limit_s: float) -> Link:
        loop = asyncio.get_running_loop()
        deadline, attempt_s = loop.time() + limit_s, ATTEMPT_S
        while True:
            try:
                return await Link.attach(
                    self._options.address, self._attach, key=self._options.key,
                    limit_s=min(attempt_s, max(deadline - loop.time(), RETRY_S)),
                )  # fmt: skip
            except NoAnswer as error:  # the address in a run directory may be another by then
                if loop.time() >= deadline:
                    raise NoAnswer(
                        f"No controller came back at {self._options.address} within {limit_s:g} s "
                        "(controller.reattach_s), so this worker ends; what it had goes to others. Attach it "
                        f"again when the run goes on. The last try: {error}"
                    ) from None
                attempt_s = min(2 * attempt_s, LONGEST_ATTEMPT_S)
                await asyncio.sleep(RETRY_S)


def _in_words(role: Role, error: BaseException, raised: Exception) -> str:
    """Log why a worker failed; returns it for the controller."""
    if isinstance(error, ConfigError | RunError):
        # the sentence has one line of what a function of the user's has raised, and not where it called whom
        logger.error("%s", error, exc_info=error if isinstance(error, PluginError) else None)
        return str(error)
    logger.exception("The worker failed.", exc_info=raised)
    if isinstance(error, ImportError):
        return f"The {role} worker cannot import what it needs: {cannot_import(error)}"
    return (
        f"The {role} worker failed with {type(error).__name__}: {error}. This was not expected; its log has "
        "the traceback."
    )


def _make_worker(role: Role, settings: WorkerSettings, directory: str) -> HostedWorker:
    sys.path[:0] = [path for path in settings.import_paths if path not in sys.path]
    if role in ("reward", "agent"):
        hide_torch()
        if role == "agent":
            from workers.agent.worker import AgentHost

            return AgentHost(settings, directory)
        from workers.reward.worker import RewardWorker

        return RewardWorker(settings, directory)
    threads = settings.rollout.threads if role == "rollout" else settings.trainer.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported, below
    if role == "rollout":
        from workers.rollout.worker import RolloutWorker

        return RolloutWorker(settings, directory)
    from workers.trainer.worker import TrainerWorker

    return TrainerWorker(settings, directory)


def _follow(overrides: list[str]) -> int:
    """Be a trainer rank above 0, as RANK says: without a link, it follows rank 0."""
    try:
        from workers.trainer.ranks import shared_settings

        adapt, told = Overrides("trainer", overrides), shared_settings()
        while told is not None:
            settings = adapt(told)
            if settings.is_private:
                os.umask(OTHERS)
            sys.path[:0] = [path for path in settings.import_paths if path not in sys.path]
            os.environ["OMP_NUM_THREADS"] = str(settings.trainer.threads)
            from workers.trainer.worker import follow

            told = follow(settings, model_directory(settings))
            gc.collect()  # as in `find_again`
    except StaleFlowError as error:
        logger.error("%s", error)
        return 1
    return 0


def _dismiss_ranks() -> None:
    """End the other ranks of this trainer with it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    from workers.trainer.ranks import dismiss

    try:
        dismiss()
    except (ConfigError, RuntimeError) as error:
        logger.info("The other ranks were gone before they could be told to end: %s", error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
