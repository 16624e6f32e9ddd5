"""The asyncio host of the core: sockets, processes, disk and clock of a real run. It decides nothing.

Invariants: all events of one drain are written, with their payload, in one transaction before the core sees
the first of them, and no acknowledgement leaves before that; commands are executed in the order given, and
their fingerprints are written, and what they dropped is deleted, with the next events, or at the end; a run
that was cut off goes on from its journal, at the time of its last event; whatever happens, workers are
closed, the summary is written, and nothing is left running.

| what | produces | waits for |
|---|---|---|
| server (reader callback) | Received, PeerFaulted | workers |
| prompts (one daemon thread at a time) | PromptsRead | ReadPrompts |
| supervisor (a task per worker) | WorkerExited | Spawn, the process |
| timer | Tick | the core's next deadline |
| watchdog (timer) | status.json, lines in the log | a second |
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core import commands, events
from controller.core.commands import Command
from controller.core.core import Core, worker_settings
from controller.core.events import Event
from controller.data.held_out import read_held_out
from controller.data.sources import Sources
from controller.durability.release import release
from controller.durability.snapshots import CAN_BEGIN, Snapshots
from controller.durability.store import Store
from controller.host.daemon_thread import in_daemon_thread
from controller.host.going_back import leave_word, write_way_back
from controller.host.resume import Past, finished_steps, known_rows, read_past
from controller.host.run_directory import RunDirectory, origin_of
from controller.host.stepper import Stepper
from controller.host.supervisor import Supervisor
from controller.host.watchdog import Watchdog, status_of
from protocol.errors import ConfigError, RunError, StaleFlowError
from protocol.ids import PeerId
from protocol.messages import Attach, CheckpointSaved, Close, FetchModel, Message, ModelFiles, Welcome
from protocol.model_files import digest_of, read_model_files, vocabulary_of
from protocol.private_files import for_owner_only
from protocol.stacks import dump_on_signal
from protocol.wire.descriptors import RETRY_S, are_spent, raise_limit
from protocol.wire.security import Keyring, channel_key
from protocol.wire.transport import Server

CLOSE_GRACE_S = 10.0  # for workers to leave by themselves when the run is over
FAILED_GRACE_S = 2.0  # the same when it failed or was left early: somebody waits for the prompt
LOOK_S = 1.0  # between two looks of the watchdog
WRITE_S = 10.0  # at most between two status.json, though nothing has changed
FLUSH_S = 2.0  # for the last words to workers to be acknowledged

log = logging.getLogger("staleflow.controller")


class Shell:
    """One run: `open`, then `run` to its end."""

    def __init__(
        self,
        config: Config,
        *,
        prompts: Iterable[Mapping[str, Any]] | None = None,
        import_paths: tuple[str, ...] = (),
        on_step: Callable[[dict[str, object]], None],
        on_evaluation: Callable[[dict[str, object]], None],
        on_warning: Callable[[str], None],
        on_progress: Callable[[float, str], None],
    ) -> None:
        """`on_progress(fraction, text)` tells of the initial model and of workers that get ready: its text
        begins with `model: ` or `workers: `."""
        self.failure: StaleFlowError | None = None
        """Why the run failed; None while it goes on and after success."""
        self.summary: dict[str, object] = {}
        """What summary.json says; empty until the end."""
        self._config = config
        self._written = config.as_written()  # what the core and all files know: it holds no secrets
        self._iterable = prompts
        self._import_paths = import_paths
        self._on_step, self._on_warning, self._on_progress = on_step, on_warning, on_progress
        self._on_evaluation = on_evaluation
        self._stack = ExitStack()
        self._inbox: list[tuple[Event, tuple[bytes, ...]]] = []
        self._is_turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog = Watchdog(
            lease_s=config.controller.lease_s, attach_timeout_s=config.controller.attach_timeout_s
        )
        self._shown: tuple[float, object] = (-WRITE_S, None)  # when status.json was written, and what it said
        self._tokens_per_s: float | None = None  # of the last train step
        self._peers: dict[PeerId, None] = {}  # heard of, and neither forgotten nor closed
        self._model_wanted: list[PeerId] | None = []  # who waits for the initial model; None once it is there
        self._next_group = 0
        self._wanted_prompts: asyncio.Queue[commands.ReadPrompts] = asyncio.Queue()  # at most one waits
        self._first_events: list[Event] = [events.Started()]
        self._is_held = False  # what comes waits: a core that is taken up hears of its restart first
        self.has_begun = False
        """Whether the initial model is there, and the core at work."""
        self._over = asyncio.Event()
        self._is_success = False
        self._reason = ""

    async def open(self) -> None:
        """Take the run directory, listen, and find the prompts. Raises: ConfigError; nothing is left then."""
        with ExitStack() as stack:
            self.directory = RunDirectory(self._config)
            stack.callback(self.directory.close)
            past = await self._read_past()
            self._log_to_file(stack)
            for note in past.notes if past else ():
                self._on_refusal(note)
            durability = self._config.run.durability
            self._store = Store(self.directory.path / "run.db", durability=durability)
            stack.callback(self._store.close)
            self._snapshots = Snapshots(
                self._store,
                is_compact=self._config.run.journal == "compact" or durability == "off",  # memory is dear
                unsaved_events=past.replayed if past else 0,
            )
            stack.callback(self._snapshots.close)
            descriptors = raise_limit()
            log.info("%s", descriptors.in_words())
            controller = self._config.controller
            keys = Keyring(controller.keys) if controller.keys else None
            self._server = Server(
                self.directory.endpoint(controller.bind),
                on_message=self._on_message,
                on_fault=self._on_fault,
                on_drained=self._turn,
                on_refusal=self._on_refusal,
                keys=keys,
                strangers=descriptors.strangers,
            )
            stack.callback(self._server.close)
            self._weights_key = channel_key(self.directory.path / "weights.key") if keys else None
            self._local_key = self.directory.publish_key(keys.local) if keys else None
            loop = asyncio.get_running_loop()
            self._prompts = await asyncio.to_thread(
                Sources, self._config, self._iterable, known=self._store.facts().get("data"),
                on_refused=lambda text: loop.call_soon_threadsafe(self._on_refusal, text),
            )  # fmt: skip
            self._held_out = await asyncio.to_thread(read_held_out, self._config)
            if past is None:
                self._begin_core()
            else:
                await self._take_up(past)
            self._server.start()
            self.directory.publish_address(self._server.endpoint)
            self._start = time.monotonic() - (past.now if past else 0.0)
            self._stack = stack.pop_all()

    async def _read_past(self) -> Past | None:
        """The run in the directory, if there is one and it is not over; else the directory is made anew."""
        directory = self.directory
        if not directory.has_run:
            if directory.previous is not None and self._config.run.resume == "auto":
                self._on_warning(
                    f"{directory.path} held a run without run.db, so nothing could go on with it: it is set "
                    f"aside at {directory.previous}, and this is a new one."
                )
            return None
        past, steps = None, finished_steps(directory.path, self._config)
        if steps is None:
            past = await asyncio.to_thread(read_past, directory.path, self._config)
        if past is not None:
            if not past.is_over:
                directory.go_on(past.lines, past.core.evaluation.reports)
                return past
            steps = past.core.state.steps
        directory.begin(is_blank=steps is None)
        if steps is not None:
            self._on_warning(
                f"The run in {directory.path} was finished after {steps} train steps, and is set aside at "
                f"{directory.previous}; this is a new one. To go on with the old one instead, set "
                f"run.resume={directory.previous} and raise run.steps."
            )
        return None

    def _begin_core(self) -> None:
        strategies, run_dir = load_strategies(self._written), str(self.directory.path)
        core = Core(self._written, strategies, run_dir=run_dir, import_paths=self._import_paths)
        self._stepper = Stepper(self._store, core, on_skip=self._on_refusal)
        with self._store.transaction():
            for name, value in {**self._facts(), "data": self._prompts.fingerprints}.items():
                self._store.put_fact(name, value)

    async def _take_up(self, past: Past) -> None:
        """Go on with a core derived from the journal. Raises: ConfigError if the data has changed."""
        self._next_group, self._is_held = past.core.scoring.read_until, True
        config, run_dir = self._written.model_dump_json(), str(self.directory.path)
        self._first_events = [events.Restarted(config, run_dir, self._import_paths), *past.faults]
        with self._store.transaction():
            for text in write_way_back(self._store, past, self.directory.path):
                self._on_refusal(text)
            self._stepper = Stepper(self._store, past.core, on_skip=self._on_refusal)
            rows = self._store.keep_only(self.core.groups_with_payload())
        known, cursors = known_rows(past.core, rows), self._store.facts().get("cursors")
        await asyncio.to_thread(self._prompts.take_up, past.core.state.mixture.read, known, cursors)
        for line in past.lines[len(past.lines) - past.unsaved_lines :]:
            self._snapshots.add_line(line)
        if past.lines:
            self._tokens_per_s = cast("float | None", past.lines[-1].get("throughput/tokens_per_s"))
        steps = self.core.state.steps
        self._on_progress(0.0, f"workers: going on with {self.directory.path}, after {steps} train steps")

    @property
    def core(self) -> Core:
        """The run as it is known now."""
        return self._stepper.core

    async def run(self) -> None:
        """Make the run, to its end; how it ended is in `failure` and `summary`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                supervisor = self._supervisor = Supervisor(
                    tasks,
                    endpoint=self._server.endpoint,
                    logs=self.directory.logs,
                    settings=worker_settings(self._config, str(self.directory.path), self._import_paths),
                    on_exit=self._post,
                    key=self._local_key,
                )
                reader = tasks.create_task(self._read_prompts(), name="prompts")
                begin = tasks.create_task(self._begin(supervisor), name="begin")
                self._look()
                await self._over.wait()
                begin.cancel()
                reader.cancel()
                await self._close_workers(supervisor)
        except* Exception as errors:  # a task of ours broke, and with its siblings the workers are gone
            self._fail(errors.exceptions[0])
        finally:
            self._over.set()
            self._finish()

    def request_stop(self, reason: str) -> None:
        """End the run in good order: what is being trained is finished and saved."""
        self._post(events.StopRequested(reason))

    def abandon(self, reason: str) -> None:
        """End the run now."""
        if not self._over.is_set():
            self._reason = reason
            self._over.set()

    # -- events --------------------------------------------------------------------------------------------

    def _on_message(self, peer: PeerId, message: Message, frames: tuple[bytes, ...]) -> None:
        if self._over.is_set():
            if isinstance(message, Attach):  # it was still loading when the others were told
                self._server.send(peer, Close("The run is over.", is_fault=False), ())
            return
        self._peers[peer] = None
        if isinstance(message, FetchModel):
            if self._model_wanted is None:
                self._send_model_files(peer)
            else:
                self._model_wanted.append(peer)
            return
        if isinstance(message, CheckpointSaved) and not self._may_be_there(message):
            self._on_fault(peer, f"It saved {message.path}, where nothing is.")
            return
        self._post(events.Received(peer, message), frames)

    def _may_be_there(self, saved: CheckpointSaved) -> bool:
        """Batches are dropped for ever because of what a trainer says that it has saved: on this machine one
        can look."""
        return not self._config.trainer.local or Path(saved.path).exists()

    def _send_model_files(self, peer: PeerId) -> None:
        """For a machine without the model: read here, as no decision hangs on it; a few megabytes, once."""
        model = self._config.model
        try:
            files = read_model_files(self.directory.model if model.factory else Path(model.path))
        except OSError as error:
            if are_spent(error):
                asyncio.get_running_loop().call_later(RETRY_S, self._send_model_files, peer)
                return
            log.warning("The files of the model cannot be read for a remote worker: %s", error)
            files = {}
        self._server.send(peer, ModelFiles(tuple(files), digest_of(files)), tuple(files.values()))

    def _on_fault(self, peer: PeerId, reason: str) -> None:
        self._post(events.PeerFaulted(peer, reason))

    def _on_refusal(self, text: str) -> None:
        """Somebody, or something that was said, did not get in."""
        log.warning(text)
        self._on_warning(text)

    def _post(self, event: Event, frames: tuple[bytes, ...] = ()) -> None:
        """Queue an event for the next turn, which a drain makes at once."""
        if self._over.is_set():
            return
        self._inbox.append((event, frames))
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Write the waiting events, let the core decide, execute."""
        self._is_turn_due = False
        if not self._inbox or self._is_held or self._over.is_set():
            return
        batch, self._inbox = self._inbox, []
        now = time.monotonic() - self._start
        try:
            size = self._store.journal_bytes
            for command in self._stepper.turn(now, batch):
                self._execute(command)
            self._set_timer(now)
            size = self._store.journal_bytes - size
            if self._snapshots.is_due(events=len(batch), journal_bytes=size, now=now):
                self._take_snapshot(now)
        except Exception as error:  # a bug of ours, or the disk: the run cannot go on
            self._fail(error)

    def _take_snapshot(self, now: float) -> None:
        number = self._stepper.last
        if CAN_BEGIN:
            self._snapshots.begin(self.core, number=number, now=now, on_image=self._finish_snapshot)
            return
        with self._store.transaction():
            self._stepper.write_rest()
            self._snapshots.take(self.core, number=number, now=now)
            self._stepper.passed(number)

    def _finish_snapshot(self, image: bytes) -> None:
        if self._over.is_set():
            return
        try:
            with self._store.transaction():
                self._stepper.write_rest()
                self._snapshots.finish(image)
                self._stepper.passed(self._snapshots.checked)
        except Exception as error:  # the disk
            self._fail(error)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.core.next_deadline()
        if deadline is not None and not self._over.is_set():
            delay_s = max(0.0, deadline - now) + 0.001  # loops round to ms; a Tick must not come early
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._post, events.Tick())

    def _look(self) -> None:
        """Say what is waited for: in status.json, and in the log if it takes too long."""
        if self._over.is_set():
            return
        now, seen = time.monotonic() - self._start, self.core.snapshot()
        waits, complaints = self._watchdog.look(seen, now)
        for complaint in complaints:
            log.warning(complaint)
            self._on_warning(complaint)
        written, before = self._shown
        news = (seen.steps, seen.tokens, seen.groups, [wait.what for wait in waits], len(complaints))
        if news != before or now >= written + WRITE_S:
            self._shown = now, news
            self._write_status(status_of(seen, waits, tokens_per_s=self._tokens_per_s))
        asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _write_status(self, status: dict[str, Any]) -> None:
        run, trainer = self._config.run, self._config.trainer
        status |= {"steps_wanted": run.steps, "batch_groups": trainer.batch_groups}
        try:
            self.directory.write_status(status)
        except OSError as error:  # it only informs
            log.warning("status.json was not written: %s", error)

    # -- commands ------------------------------------------------------------------------------------------

    def _execute(self, command: Command) -> None:
        match command:
            case commands.Send(peer, message):
                if isinstance(message, Close):
                    self._peers.pop(peer, None)
                if isinstance(message, Welcome):
                    message = self._with_secrets(message)
                self._server.send(peer, message, self._store.fetch(message))
            case commands.Spawn(name, role, delay_s):
                self._supervisor.spawn(name, role, delay_s)
            case commands.ReadPrompts():
                self._wanted_prompts.put_nowait(command)
            case commands.ReadHeldOut(first_group):
                rows, sources, digest = self._held_out
                self._post(events.HeldOutRead(first_group, sources, digest), rows)
            case commands.DropPayload(groups):
                self._stepper.doom(groups)
            case commands.Forget(peer, name):
                self._peers.pop(peer, None)
                self._server.forget(peer)
                self._supervisor.kill(name)
            case commands.ReportStep(metrics):
                self.directory.append_metrics(metrics)
                self._snapshots.add_line(metrics)
                self._tokens_per_s = cast("float", metrics["throughput/tokens_per_s"])
                self._on_step(metrics)
            case commands.ReportEvaluation(metrics):
                self.directory.append_evaluation(metrics)
                self._on_evaluation(metrics)
            case commands.Warn(text):
                log.warning(text)
                self._on_warning(text)
            case commands.Progress(fraction, text):
                self._on_progress(fraction, text)
            case commands.Finish(is_success, reason):
                self._is_success, self._reason = is_success, reason
                self.failure = None if is_success else RunError(reason)
                self._over.set()

    async def _begin(self, supervisor: Supervisor) -> None:
        """Make the initial model if it is not there, then let the run begin."""
        model = self._config.model
        try:
            if model.factory is not None and not self.directory.has_model(
                origin_of(model.factory, self._config.run.seed)
            ):
                await supervisor.prepare_model(
                    factory=model.factory,
                    directory=self.directory.model,
                    seed=self._config.run.seed,
                    on_progress=lambda fraction, text: self._on_progress(fraction, f"model: {text}"),
                )
            self._server.vocabulary = vocabulary_of(
                self.directory.model if model.factory is not None else Path(model.path)
            )
            held, self._inbox, self._is_held = self._inbox, [], False
            self.has_begun = True
            for event in self._first_events:
                self._post(event)
            self._inbox += held
            waiting, self._model_wanted = self._model_wanted or [], None
            for peer in waiting:
                self._send_model_files(peer)
        except Exception as error:  # the factory failed, or the disk
            self._fail(error)

    async def _read_prompts(self) -> None:
        """Read what the core asked for, in a daemon thread: a source that blocks must not delay the exit."""
        while True:
            wanted = await self._wanted_prompts.get()
            try:
                rows, sources = await in_daemon_thread(
                    lambda wanted=wanted: self._prompts.read(wanted.count, wanted.sources)
                )
            except Exception as error:
                self._fail(error)
                return
            first, self._next_group = self._next_group, self._next_group + len(rows)
            self._stepper.note("cursors", self._prompts.cursors)
            self._post(events.PromptsRead(first, len(rows), self._prompts.is_end, sources), tuple(rows))

    # -- the end -------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """End the run because of an error; the first one counts."""
        log.error("The run failed.", exc_info=error)
        if self.failure is not None or (self._over.is_set() and self._reason):
            return
        if isinstance(error, RunError | ConfigError):
            self.failure = error
        else:
            self.failure = RunError(
                f"The controller failed with {type(error).__name__}: {error}. This is a bug: please report "
                f"it with {self.directory.logs / 'controller.log'} and run.db beside it."
            )
            self.failure.__cause__ = error
        self._reason = str(self.failure)
        self._over.set()

    async def _close_workers(self, supervisor: Supervisor) -> None:
        """Tell everybody that was not told yet, and wait for local workers to be gone."""
        for peer in self._peers:
            self._server.send(peer, Close("The run is over.", is_fault=False), ())
        await self._server.flush(FLUSH_S)
        await supervisor.stop(CLOSE_GRACE_S if self._is_success else FAILED_GRACE_S)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._stack:
            reason = self._reason or "The run was cancelled."
            self.summary = {**self.core.summary(), "is_success": self._is_success, "reason": reason}
            self.summary |= {} if self._is_success else {"ending": "failed"}
            self._write_status(status_of(self.core.snapshot(), [], tokens_per_s=self._tokens_per_s))
            try:
                self.directory.write_summary(self.summary)
            except OSError as error:
                self.failure = self.failure or RunError(
                    f"{self.directory.path}/summary.json was not written: {error}."
                )
            try:
                with self._store.transaction():
                    leave_word(self._store, self._stepper, self.failure)
            except RunError as error:
                self.failure = self.failure or error

    def _with_secrets(self, message: Welcome) -> Welcome:
        """What the core does not know, and workers need."""
        settings = worker_settings(self._config, str(self.directory.path), self._import_paths)
        key = self._weights_key.model_dump_json() if self._weights_key is not None else message.weights_key
        return replace(message, settings=settings.model_dump_json(), weights_key=key)

    def _facts(self) -> dict[str, str]:
        """What the core is built from, and by what: all that a replay needs beside the events."""
        return {
            "config": self._written.model_dump_json(),
            "run_dir": str(self.directory.path),
            "import_paths": json.dumps(self._import_paths),
            "release": json.dumps(release()),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _log_to_file(self, stack: ExitStack) -> None:
        handler = _OwnersLog(self.directory.logs / "controller.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger("staleflow")
        root.setLevel(self._config.logging.level.upper())
        root.addHandler(handler)
        stack.callback(handler.close)
        stack.callback(root.removeHandler, handler)
        if (forget := dump_on_signal(handler.stream)) is not None:
            stack.callback(forget)


class _OwnersLog(logging.FileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=for_owner_only)
