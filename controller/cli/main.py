"""The commands behind launch.py.

Invariants: exit code 0 means done, 1 a failed run (its first cause is printed last), 2 a wrong configuration
or command line, 130 stopped at once by Ctrl-C: by the second, or by the first before the run has begun; no
process is left behind.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import install
from controller.check.problems import Finding
from controller.check.problems import check as find_problems
from controller.check.source import find_import_path
from controller.cli import doctor, needs, remote, render, simulate, stacks, status, testing
from controller.cli import install as install_command
from controller.cli.alarm_watch import AlarmWatch
from controller.cli.command_line import (
    ConfigPath,
    NotUnderstood,
    Overrides,
    RecordedRun,
    as_command,
    in_a_sentence,
    of_a_path,
)
from controller.cli.compile import compile_core
from controller.cli.console import Console, make_console
from controller.cli.guarded_console import GuardedConsole
from controller.cli.looking import evaluated, export, history, samples, view
from controller.cli.planning import init
from controller.cli.planning.filling import filling
from controller.cli.say import say
from controller.config.load import load_config
from controller.config.models import Config
from controller.controller import Controller, Evaluee, evaluate, why_refused
from controller.history.profile import in_words
from controller.history.profile import profile as profile_run
from controller.view.door.beside import ViewLink, view_beside
from install.standard_output import drop_unwritten
from protocol.engines import ENGINES
from protocol.errors import ConfigError, StaleFlowError
from strategies.cost_model import dump_coefficients

ROOT = Path(__file__).resolve().parents[2]
STOPPED_AT_ONCE = 130
GC_THRESHOLDS = 700, 10, 1_000
"""Python's own thresholds, with fewer full collections: each stops the event loop for 40 to 100 ms at 8,000
trajectories (`benchmarks.coordination cost`), and the core leaves no cycles to find."""
STANDARD_ERROR = 2

app = typer.Typer(
    help="Asynchronous RL post-training with a strict staleness bound. `launch.py CONFIG.yaml` is "
    "`launch.py run CONFIG.yaml`.",
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
)  # fmt: skip


RUNS, LOOKING, PLANNING, SETTING_UP, DEVELOPING = (
    "Train",
    "Look at a run",
    "Plan",
    "Set up",
    "Develop",
)  # groups of --help, in the order of their first commands


def _show_version(is_asked: bool) -> None:
    if is_asked:
        install.ensure(["--version"])


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which release this is.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main(arguments: list[str]) -> int:
    """Run a command line; returns its exit code. Errors are printed."""
    commands = {
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    }
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        return int(app(as_command(arguments, commands), prog_name="launch.py", standalone_mode=False) or 0)
    except install.Lacking as lacking:
        install.start_again(lacking, arguments)
    except NotUnderstood as error:
        if text := in_a_sentence(error):
            say(text, is_error=True)
        return 2
    except typer.Abort:  # Ctrl-C, or the end of the input, at a question
        return STOPPED_AT_ONCE
    except SystemExit as end:  # typer's sign that the reader of its output is gone
        return int(end.code or 0)
    except StaleFlowError as error:
        say(str(error), is_error=True)
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        if not (text := of_a_path(error)):
            raise
        say(text, is_error=True)
        return 2
    except KeyboardInterrupt:
        return STOPPED_AT_ONCE
    finally:
        signal.signal(signal.SIGINT, before)
    return 0


def _interrupt(number: int, frame: object) -> None:
    """Handle Ctrl-C while no run can end in order."""
    with suppress(OSError):  # the reader may be gone
        os.write(STANDARD_ERROR, b"\nStopped.\n")  # print may be what was interrupted
    raise KeyboardInterrupt


@app.command(rich_help_panel=RUNS)
def run(config: ConfigPath, overrides: Overrides = None) -> None:
    """Train, or go on with a run that was killed or stopped."""
    settings = load_config(config, overrides or ())
    needs.require(settings)
    _refuse_errors(settings)
    console = GuardedConsole(make_console(settings.logging.console, steps=settings.run.steps))
    try:
        raise typer.Exit(run_until_interrupted(lambda stopping: train(settings, console, stopping)))
    finally:
        console.close()
        drop_unwritten(sys.stdout)  # the exit code does not depend on it


@app.command(rich_help_panel=RUNS)
def check(
    config: ConfigPath,
    overrides: Overrides = None,
    call_reward: Annotated[
        bool, typer.Option("--call-reward", help="Call the reward once, on the first row.")
    ] = False,
) -> None:
    """Validate a configuration and say what would happen, without starting anything of the run."""
    settings = load_config(config, overrides or ())
    findings = find_problems(settings, is_thorough=True, calls_reward=call_reward)
    if (reason := why_refused(settings)) is not None:
        findings.insert(0, Finding("error", "run.resume", reason))
    if (filled := filling(settings)) is not None:
        told = f"if environments are as simulation.environment says, {filled.in_words()}"
        findings.append(Finding("note", "agent", told))
    installed = needs.installed_by_the_run(settings)
    for place, finding in enumerate(findings):
        is_untold = "not installed" in finding.text or finding.field == "agent.function"  # until it is there
        if finding.field in installed and is_untold:
            text = f"{installed[finding.field]}, which is installed when the run starts."
            findings[place] = Finding("note", finding.field, text)
    for finding in findings:
        say(f"{finding.level}: {finding.field}: {finding.text}")
    errors = sum(finding.level == "error" for finding in findings)
    notes = len(findings) - errors
    say(f"{config}: {errors} error{'s' * (errors != 1)}, {notes} note{'s' * (notes != 1)}.")
    raise typer.Exit(2 if errors else 0)


@app.command("eval", rich_help_panel=RUNS)
def evaluate_rows(
    config: ConfigPath,
    overrides: Overrides = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Default: the run's newest, else model.path.")
    ] = "",
    base_url: Annotated[str, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint instead.")] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="With --base-url: the model's name there.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="At most so many; default all of evaluation.data.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Responses per row; default evaluation.samples.")] = 0,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE.jsonl", help="Add all transcripts to it.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Answer held-out rows with a checkpoint or an endpoint, without training."""
    settings = load_config(config, overrides or ())
    if base_url:
        needs.require_extras("workers", "judge", reason="--base-url")
    else:
        needs.require(settings)
    evaluee = Evaluee(checkpoint, base_url, model)
    line = evaluate(
        settings, evaluee, rows=rows, samples=samples, transcripts=output, progress_to=STANDARD_ERROR
    )
    say(json.dumps(line) if as_json else evaluated.in_words(line))
    raise typer.Exit(0 if line["prompts"] else 1)


for command in (status.stop, remote.control, remote.attach, remote.drain):
    app.command(rich_help_panel=RUNS)(command)
for command in (
    status.status,
    view.view,
    samples.samples,
    history.story,
    history.trace,
    history.replay,
    export.export,
    stacks.stacks,
):
    app.command(rich_help_panel=LOOKING)(command)
for command in (simulate.simulate, render.render):
    app.command(rich_help_panel=PLANNING)(command)
app.command(rich_help_panel=SETTING_UP)(init.init)
app.command("install", rich_help_panel=SETTING_UP)(install_command.install_packages)
app.command(rich_help_panel=SETTING_UP)(doctor.doctor)
app.command("compile", rich_help_panel=SETTING_UP)(compile_core)
for command in (remote.keygen, remote.revoke):
    app.command(rich_help_panel=SETTING_UP)(command)

FOR_PYTEST = {"ignore_unknown_options": True, "allow_extra_args": True}
app.command("test", context_settings=FOR_PYTEST, rich_help_panel=DEVELOPING)(testing.run_tests)


@app.command(context_settings=FOR_PYTEST, rich_help_panel=DEVELOPING)
def conformance(
    context: typer.Context,
    engine: Annotated[str, typer.Argument(help="torch, vllm, or file.py:make or module:make of your own")],
    without_model: Annotated[
        bool,
        typer.Option("--without-model", help="Only scheduling: for an engine that runs no real model."),
    ] = False,
) -> None:
    """Check that a rollout engine keeps the interface's promises; further arguments go to pytest."""
    needs.require_folder("The tests of an engine are a part")
    import pytest

    known = (*ENGINES, "simulated")
    if engine not in known and (problem := find_import_path(engine)):
        raise ConfigError(f"{problem} Or name one of {', '.join(known)}.")
    file, colon, name = engine.rpartition(":")
    spec = f"{Path(file).absolute()}:{name}" if colon and file.endswith(".py") else engine
    os.chdir(ROOT)
    tests = "tests/conformance/test_engine_scheduling.py" if without_model else "tests/conformance"
    raise typer.Exit(int(pytest.main([tests, "--engine", spec, *context.args])))


@app.command(rich_help_panel=LOOKING)
def profile(
    run: RecordedRun,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.json", help="Where to keep the coefficients."),
    ] = None,
) -> None:
    """Fit the cost model to a run's history, for later runs on the same machines."""
    found = profile_run(run)
    say(in_words(found))
    if output is not None:
        try:
            output.write_text(dump_coefficients(found.together.coefficients))
        except OSError as error:
            raise ConfigError(
                f"The coefficients cannot be written to {output}: {error.strerror}. Expected a file in a "
                "folder that exists and that you may write to; give another -o."
            ) from error


async def train(config: Config, console: Console, stopping: "Stopping") -> int:
    """Train, and show the run on the console; returns the exit code. Raises: RunError or ConfigError."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    controller = Controller(
        config,
        on_evaluation=console.evaluation,
        on_warning=console.warn,
        on_progress=console.progress,
    )
    try:
        async with controller, _view_of(controller, console) as link:
            if link is not None:
                console.note(link.in_words(shows_token=sys.stdout.isatty()))
            stopping.use(controller.stop, may_wait=lambda: controller.has_begun)
            console.progress(None, f"workers: starting {workers_in_words(config)}")
            alarm = AlarmWatch(controller.run_dir, console.warn, bound=config.staleness.max_staleness)
            async for step in controller.train():
                console.step(step.metrics)
                await alarm.look()
    finally:
        console.close()
    console.finish(controller.summary, controller.run_dir)
    return 0


def _view_of(controller: Controller, console: Console) -> AbstractAsyncContextManager[ViewLink | None]:
    """The view beside the run, or an empty context if there is none."""
    settings = controller.config.view
    if settings.start == "off" or controller.config.run.durability == "off" or install.missing(["web"]):
        return nullcontext(None)
    return view_beside(controller.run_dir, settings, on_warning=console.warn)


class Stopping:
    """Handles Ctrl-C, SIGTERM and a closed terminal: the first ends the run in order, the second at once.

    A terminal that is closed is never the second: the kernel and the shell may both say so. Under nohup it is
    ignored.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._say = task, say
        self._stop: Callable[[str], None] | None = None
        self._may_wait = lambda: False
        self._is_stopping = False
        self.is_at_once, self.how = False, ""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hang_up)

    def use(self, stop: Callable[[str], None], *, may_wait: Callable[[], bool] = lambda: True) -> None:
        """Let the first signal call `stop(reason)`, if `may_wait()` says that the run can end in order.

        Otherwise, and before this call, a signal ends the program at once.
        """
        self._stop, self._may_wait = stop, may_wait

    def _on_hang_up(self) -> None:
        if not self._is_stopping:
            self._on_signal()

    def _on_signal(self) -> None:
        if self._is_stopping or self._stop is None or not self._may_wait():
            self.is_at_once, self.how = True, "at once" if self._is_stopping else "before the run had begun"
            self._task.cancel(f"The operator stopped it {self.how}.")
            return
        self._is_stopping = True
        self._stop("interrupted by the operator")
        self._say("Stopping: the step in hand is finished and a checkpoint saved. Again to stop at once.")


def run_until_interrupted(work: Callable[[Stopping], Coroutine[Any, Any, int]]) -> int:
    """The exit code of `work`; STOPPED_AT_ONCE if signals cut it short."""

    async def guarded() -> int:
        stopping = Stopping(lambda text: say(text, is_error=True))
        try:
            return await work(stopping)
        except asyncio.CancelledError:
            if not stopping.is_at_once:
                raise
            say(f"Stopped {stopping.how}.", is_error=True)
            return STOPPED_AT_ONCE

    import uvloop

    before = signal.getsignal(signal.SIGINT)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(guarded())
        finally:
            signal.signal(signal.SIGINT, before)


def _refuse_errors(config: Config) -> None:
    errors = [finding for finding in find_problems(config) if finding.level == "error"]
    if errors:
        listed = "\n".join(f"  {finding.field}: {finding.text}" for finding in errors)
        raise ConfigError(f"The run cannot start:\n{listed}")


def workers_in_words(config: Config) -> str:
    """How many workers of each role the run starts, and which must be attached."""
    counts = {"rollout": config.rollout.instances, "reward": config.reward.workers, "trainer": 1}
    counts |= {} if config.trainer.local else {"trainer": 0}
    counts |= {"agent": config.agent.workers} if config.agent.is_on else {}
    if config.trainer.is_supervised:
        del counts["rollout"]
    text = ", ".join(f"{count} {role}" for role, count in counts.items())
    missing = [role for role, count in counts.items() if not count]
    return "; ".join([text, *(f"attach one with `launch.py attach RUN --role {role}`" for role in missing)])
