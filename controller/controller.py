"""Runs a training run inside any asyncio program.

    async with Controller(load_config("run.yaml")) as controller:
        async for step in controller.train():
            print(step.policy_version, step.metrics["reward/mean"])

Invariants: leaving the block, for whatever reason, ends the run and every process that it started, except the
one that forks workers, which waits a minute for the next run of this program; the cause of a failed run is
raised once, as RunError (ConfigError if it is the user's data or settings), by `train` or else at the exit.
"""

import asyncio
import logging
import os
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self

from controller.config.models import Config
from controller.core.state.views.snapshot import ClusterSnapshot
from controller.given.arguments import (
    refuse_callbacks,
    refuse_other_than_config,
    refuse_problems_of,
    refuse_prompts,
)
from controller.given.importable import import_path
from controller.host import resume
from controller.host.offline.offline_evaluation import Evaluee
from controller.host.offline.offline_evaluation import evaluate as evaluate_rows
from controller.host.shell import Shell
from controller.view.exports.beside import exports_beside
from controller.view.orders import give
from protocol.errors import ConfigError
from protocol.importing import being_imported
from protocol.plain_text import one_line, plain

P = ParamSpec("P")
log = logging.getLogger("staleflow.controller")


@dataclass(frozen=True, slots=True)
class Step:
    """One finished train step."""

    policy_version: int
    metrics: dict[str, Any]  # the line of metrics.jsonl


def forgiven(call: Callable[P, object]) -> Callable[P, None]:
    """The user's callback in a wrapper that logs its errors, so that the run goes on."""

    def forgiving(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            call(*arguments, **options)
        except Exception:
            log.exception("A callback that was given to Controller failed; the run goes on.")

    return forgiving


def _log_progress(fraction: float, text: str) -> None:
    log.info("%3.0f %% %s", 100 * fraction, text)


class Controller:
    """One run: starts on entering the block, ends on leaving it."""

    def __init__(
        self,
        config: Config,
        *,
        prompts: Iterable[Mapping[str, Any]] | None = None,
        reward: Callable[..., Any] | None = None,
        agent: Callable[..., Any] | None = None,
        on_evaluation: Callable[[dict[str, Any]], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_progress: Callable[[float, str], None] | None = None,
    ) -> None:
        """A controller of a run that has not begun.

        `prompts` takes the place of `data.path`; it is read in a thread, as rows are needed.
        `reward` takes the place of `reward.function`: a function, or an object with `__call__`, that has a
        name at the top level of a module or script, which workers import.
        `agent` takes the place of `agent.function` or `agent.command`, in the same way: an
        `async def episode(policy, row)`, or a class of tools or environments.
        `on_evaluation(line)` is called after each evaluation with its line of evaluations.jsonl.
        `on_warning(text)` is called with each warning, which is in the log as well; `on_progress(fraction,
        text)` while the initial model is made and workers start (default: the log).
        Raises: ConfigError if workers could not import `reward` or `agent`, or another argument is not what a
        run can use.
        """
        refuse_other_than_config(config)
        refuse_callbacks(on_evaluation=on_evaluation, on_warning=on_warning, on_progress=on_progress)
        self.config, roots = _with_callables(config, reward=reward, agent=agent)
        """The configuration, with `reward` and `agent` in their places."""
        refuse_problems_of(self.config)
        refuse_prompts(prompts, self.config)
        self._steps: asyncio.Queue[Step | None] = asyncio.Queue()  # run.steps at most, then None
        self._is_read = False  # whether a task waits for the next step
        self.evaluations: list[dict[str, Any]] = []
        """The lines of evaluations.jsonl that this controller has written."""
        self._on_evaluation = forgiven(on_evaluation or (lambda line: None))
        self._on_warning = forgiven(on_warning or (lambda text: None))
        self._run: asyncio.Task[None] | None = None
        self._of_run = copy_context()  # once entered: log records made in it belong to this run
        self._beside = AsyncExitStack()  # processes beside the run that read it
        self._is_opening = self._is_raised = False
        self._shell = Shell(
            self.config,
            prompts=prompts,
            import_paths=tuple(dict.fromkeys([os.getcwd(), *roots, *_own_import_paths()])),
            on_step=self._stepped,
            on_evaluation=self._evaluated,
            on_warning=self._on_warning,
            on_progress=forgiven(on_progress) if on_progress else _log_progress,
        )

    async def __aenter__(self) -> Self:
        """Start the run. Raises: ConfigError if it cannot start; RuntimeError if it was entered before."""
        if self._run is not None or self._is_opening:
            raise RuntimeError(
                "This Controller has been entered before. Expected a new Controller for each `async with`: "
                "it goes on with a run that is not finished."
            )
        if (spec := being_imported()) is not None:
            raise ConfigError(
                f"The file of {spec!r} starts a run whenever it is imported, and each process that needs a "
                'function of it imports it. Put what starts the run under `if __name__ == "__main__":`.'
            )
        self._is_opening = True
        try:
            await self._open()
        finally:
            self._is_opening = False
        # not a TaskGroup: it would wrap what the caller's own block raises
        self._run = asyncio.create_task(self._shell.run(), name="controller")
        self._run.add_done_callback(lambda _: self._steps.put_nowait(None))
        return self

    async def _open(self) -> None:
        async with AsyncExitStack() as stack:
            await self._shell.open()
            stack.callback(self._shell.close)
            self._of_run = copy_context()
            await stack.enter_async_context(
                exports_beside(self._shell.directory.path, self.config, on_warning=self._on_warning)
            )
            self._beside = stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._run is not None
        self._shell.abandon(_why_left(error))
        try:
            await self._run
        finally:
            await self._beside.aclose()
        if error is None:
            self._raise_failure()

    async def train(self) -> AsyncIterator[Step]:
        """The train steps as they are finished, to the end of the run.

        Each step is given once: a later call goes on where an earlier one stopped. Raises: RunError with the
        first cause; RuntimeError if the run has not begun, while another task waits for its next step, or in
        another event loop than that of the run.
        """
        self._entered("train()")
        while (step := await self._next_step()) is not None:
            yield step
        self._steps.put_nowait(None)  # a later call ends at once
        self._raise_failure()

    async def _next_step(self) -> Step | None:
        assert self._run is not None, "it was entered"
        if asyncio.get_running_loop() is not self._run.get_loop():
            raise RuntimeError(
                "train() is read in another event loop than that in which the Controller was entered, and no "
                "step would come. Expected the same loop: let it hand the steps on, by a queue.Queue."
            )
        if self._is_read:
            raise RuntimeError(
                "Two tasks read train() of one Controller at once, and each step comes once. Expected one "
                "reader: let it hand the steps on."
            )
        self._is_read = True
        try:
            return await self._steps.get()
        finally:
            self._is_read = False

    def stop(self, reason: str | BaseException) -> None:
        """End the run in order: the current train step is finished and a checkpoint is saved.

        `reason`: for people, in one line; an exception is put into words. Another thread, or a signal
        handler, may call it, too. Raises: RuntimeError if the run has not begun.
        """
        request_stop = self._entered("stop()").request_stop
        assert self._run is not None, "it was entered"
        text = _why_stopped(reason)  # the journal refuses what is no text
        if not self._run.done():
            self._run.get_loop().call_soon_threadsafe(lambda: self._of_run.run(request_stop, text))

    async def control(self, action: str, argument: str = "", *, why: str = "") -> str:
        """Give an order as `launch.py control` does, and return the answer: `control("set", "samples.mb=8")`.

        Raises: ConfigError if it is refused; NoAnswer; RuntimeError if the run has not begun, or is over.
        """
        shell = self._entered("control()")
        assert self._run is not None, "it was entered"
        if self._run.done():
            raise RuntimeError("The run is over, and nobody obeys orders. Expected them before its end.")
        return await give(str(shell.directory.path), action, argument, why)

    @property
    def has_begun(self) -> bool:
        """Whether the initial model exists and workers get work.

        Before that `stop` has nothing to finish.
        """
        return self._shell.has_begun

    def snapshot(self) -> ClusterSnapshot:
        """A frozen picture of the run's workers and groups now. Raises: RuntimeError if it has not begun."""
        return self._entered("snapshot()").core.snapshot()

    @property
    def run_dir(self) -> Path:
        """The run directory. Raises: RuntimeError if the run has not begun."""
        return self._entered("run_dir").directory.path

    @property
    def summary(self) -> dict[str, Any]:
        """Totals up to now; after the end, the content of summary.json.

        Raises: RuntimeError if the run has not begun.
        """
        shell = self._entered("summary")
        return deepcopy(shell.summary) or shell.core.summary()

    def _entered(self, what: str) -> Shell:
        """The shell of a run that has begun. Raises: RuntimeError if it has not."""
        if self._run is None:
            raise RuntimeError(
                f"{what} is of a run that has begun, and this Controller has not been entered. Expected it "
                "inside `async with Controller(...) as controller:`, or after that."
            )
        return self._shell

    # the run keeps its lines: what a program gets of them, it may change

    def _stepped(self, line: dict[str, Any]) -> None:
        self._steps.put_nowait(Step(int(line["policy_version"]), deepcopy(line)))

    def _evaluated(self, line: dict[str, Any]) -> None:
        self.evaluations.append(deepcopy(line))
        self._on_evaluation(deepcopy(line))

    def _raise_failure(self) -> None:
        if self._shell.failure is not None and not self._is_raised:
            self._is_raised = True
            raise self._shell.failure


def _why_left(error: BaseException | None) -> str:
    """Why a run ends whose program leaves it by this error; None: before its last step."""
    if isinstance(error, asyncio.CancelledError):
        return f"{str(error) or 'The program was cancelled.'} Start it again, and the run goes on."
    how = "" if error is None else f" by {type(error).__name__} {error}".rstrip()
    return f"The program left the run before its end{how}."


def _why_stopped(reason: object) -> str:
    """The reason of `stop` as one line for people; a program may have passed its exception, or None."""
    name = type(reason).__name__
    given = f"{name}: {reason}".rstrip(": ") if isinstance(reason, BaseException) else reason
    return ("" if given is None else one_line(plain(str(given)))) or "The program stopped the run."


def _with_callables(
    config: Config, *, reward: Callable[..., Any] | None, agent: Callable[..., Any] | None
) -> tuple[Config, tuple[str, ...]]:
    """The configuration with the import paths of these callables, and the folders to import them from.

    Raises: ConfigError if workers could not import one of them.
    """
    sections: dict[str, Any] = {}
    roots: list[str] = []
    if reward is not None:
        path, root = import_path(reward)
        sections["reward"] = config.reward.model_copy(update={"function": path, "rewards": ()})
        roots.append(root)
    if agent is not None:
        path, root = import_path(agent, what="agent")
        sections["agent"] = config.agent.model_copy(update={"function": path, "command": ()})
        roots.append(root)
    return config.model_copy(update=sections), tuple(roots)


def evaluate(config: Config, evaluee: Evaluee, **options: Any) -> dict[str, Any]:
    """Answer held-out rows without training, with the import paths of a run of this program."""
    paths = tuple(dict.fromkeys([os.getcwd(), *_own_import_paths()]))
    return evaluate_rows(config, evaluee, import_paths=paths, **options)


def why_refused(config: Config) -> str | None:
    """Why a run of this configuration cannot go on with its run directory; None if it can."""
    return resume.why_refused(config)


def _own_import_paths() -> list[str]:
    """Folders on sys.path outside the Python installation and its packages.

    Folders inside packages are left out because setuptools, once imported, adds old releases of other
    packages.
    """
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    folders = [os.path.realpath(entry) for entry in sys.path if entry and os.path.isdir(entry)]
    ours = {"lib-dynload", "site-packages", "dist-packages"}
    return [f for f in folders if f not in installed and not ours & {*Path(f).parts}]
