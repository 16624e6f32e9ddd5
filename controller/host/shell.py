"""The asyncio host of the core: sockets, processes, disk and clock of a real run. It decides nothing.

Invariants: all events of one drain, with their payload, are committed in one transaction before the core sees
the first and before they are acknowledged; commands are executed in order; their fingerprints are written
with the next events, or at the end, deletions then or later; an interrupted run resumes from its journal, at
the time of its last event; whatever happens, workers are closed, the summary is written, and nothing runs on.

| task | produces | waits for |
|---|---|---|
| server (reader callback) | Received, PeerFaulted | workers |
| prompt reader (one daemon thread at a time) | PromptsRead | ReadPrompts |
| supervisor (a task per worker) | WorkerExited | Spawn, the process |
| timer | Tick | the core's next deadline |
| status file (timer) | status.json, lines in the log | a second, or what makes it 0.4 % of the loop |
"""

import asyncio
import logging
import os.path
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core import commands, events
from controller.core.core import Core
from controller.core.worker_settings import with_secrets, worker_settings
from controller.data.held_out import read_held_out
from controller.durability.release import facts_again, facts_of
from controller.durability.store import Store
from controller.host.collector import rare_collections
from controller.host.daemon_thread import in_daemon_thread
from controller.host.going_back import leave_word, set_late_aside, write_way_back
from controller.host.health.own_health import OwnHealth
from controller.host.initial_model import InitialModel
from controller.host.prompt_reader import PromptReader
from controller.host.resume import ResumedRun, find_past
from controller.host.run_directory import RunDirectory
from controller.host.snapshot_taker import SnapshotTaker
from controller.host.status_file import StatusFile
from controller.host.stepper import Stepper
from controller.host.supervisor import CLOSE_GRACE_S, FAILED_GRACE_S, Supervisor
from protocol.errors import ConfigError, RunError, StaleFlowError, first_cause
from protocol.ids import PeerId
from protocol.messages import Attach, CheckpointSaved, Close, FetchModel, Message, Role, Welcome
from protocol.wire.descriptors import raise_limit
from protocol.wire.security import CHANNEL_ROLES, Keyring, channel_key
from protocol.wire.server import Server

FLUSH_S = 2.0  # for the last words to workers to be acknowledged

log = logging.getLogger("staleflow.controller")


class Shell:
    """One run: `open`, then `run` to its end, or else `close`."""

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
        """`on_progress(fraction, text)` hears of the initial model (`model: `) and of `workers: `."""
        self.failure: StaleFlowError | None = None
        """Why the run failed; None while it goes on and after success."""
        self.summary: dict[str, object] = {}
        """What summary.json says; empty until the end."""
        self._config = config
        self._written = config.as_written()  # what the core and all files know: it holds no secrets
        self._iterable, self._import_paths = prompts, import_paths
        self._on_step, self._on_warning, self._on_progress = on_step, on_warning, on_progress
        self._on_evaluation = on_evaluation
        self._stack = ExitStack()
        self._inbox: list[tuple[events.Event, tuple[bytes, ...]]] = []
        self._is_turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._peers: dict[PeerId, None] = {}  # heard of, and neither forgotten nor closed
        self._first_events: list[events.Event] = [events.Started(events.RULES)]
        self._is_held = False  # what comes waits: a core that is taken up hears of its restart first
        self.has_begun = False  # whether the initial model is there, and the core at work
        self._over = asyncio.Event()
        self._is_success, self._reason = False, ""

    async def open(self) -> None:
        """Take the run directory, listen, and find the prompts. Raises: ConfigError; nothing is left then."""
        with ExitStack() as stack:
            self._collector = stack.enter_context(rare_collections())
            self.directory = RunDirectory(self._config)
            stack.callback(self.directory.close)
            health = OwnHealth(self.directory.path, lambda: self.core, self.directory.lost_socket)
            self._status = StatusFile(
                self.directory, self._config, on_complaint=self._warn, own=stack.enter_context(health).look
            )
            past = await find_past(self.directory, self._config, on_warning=self._on_warning)
            self.directory.begin_log(level=self._config.logging.level, stack=stack)
            for note in past.notes if past else ():
                self._warn(note)
            self._store = Store(self.directory.path / "run.db", durability=self._config.run.durability)
            stack.callback(self._store.close)
            self._snapshots = SnapshotTaker(
                self._store, self._config.run, unsaved_events=past.replayed if past else 0,
                is_over=self._over.is_set, on_failure=self._fail,
            )  # fmt: skip
            stack.callback(self._snapshots.close)
            self._listen(stack)
            self._model = InitialModel(
                self._config, self.directory, self._server, on_fault=self._on_fault,
                on_progress=lambda fraction, text: self._on_progress(fraction, f"model: {text}"),
            )  # fmt: skip
            self._prompts = await PromptReader.open(
                self._config, self._iterable, known=self._store.facts().get("data"),
                on_refused=self._warn,
            )  # fmt: skip
            self._held_out = await in_daemon_thread(partial(read_held_out, self._config))
            if past is None:
                await self._begin_core()
            else:
                await self._take_up(past)
            self._server.start()
            self.directory.publish_address(self._server.endpoint)
            self._start = time.monotonic() - (past.now if past else 0.0)
            self._collector.leave_what_is_there()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of what `open` has taken; a run does that at its end."""
        self._stack.close()

    def _listen(self, stack: ExitStack) -> None:
        descriptors, controller = raise_limit(), self._config.controller
        log.info("%s", descriptors.in_words())
        keys = Keyring(controller.keys) if controller.keys else None
        self._server = Server(
            self.directory.endpoint(controller.bind),
            on_message=self._on_message, on_fault=self._on_fault, on_drained=self._turn,
            on_refusal=self._warn, keys=keys, strangers=descriptors.strangers,
        )  # fmt: skip
        stack.callback(self._server.close)
        self._weights_key = channel_key(self.directory.path / "weights.key") if keys else None
        self._local_key = self.directory.publish_key(keys.local) if keys else None

    async def _begin_core(self) -> None:
        run_dir, paths = str(self.directory.path), self._import_paths
        of_files = {"data": self._prompts.fingerprints, "weights": await self._model.weights()}
        core = Core(self._written, load_strategies(self._written), run_dir=run_dir, import_paths=paths)
        self._stepper = Stepper(self._store, core, on_skip=self._warn)
        with self._store.transaction():
            facts = facts_of(self._written, run_dir=run_dir, import_paths=paths)
            for name, value in {**facts, **of_files}.items():
                self._store.put_fact(name, value)

    async def _take_up(self, past: ResumedRun) -> None:
        """Go on with a core derived from the journal. Raises: ConfigError if the data has changed."""
        self._is_held = True
        config, run_dir = self._written.model_dump_json(), str(self.directory.path)
        self._first_events = [events.Restarted(config, run_dir, self._import_paths), *past.faults]
        with self._store.transaction():
            for text in write_way_back(self._store, past, self.directory.path):
                self._warn(text)
            self._stepper = Stepper(self._store, past.core, on_skip=self._warn)
            rows = self._store.keep_only(self.core.groups_with_payload())
        self._stepper.note(facts_again(self._written, past.parts, last=self._stepper.last))
        await self._prompts.go_on(past.core, rows, cursors=self._store.facts().get("cursors"))
        for line in past.lines:
            self._snapshots.add_line(line)
        if newest := past.newest_line:
            self._status.note_step(newest)
        self._on_progress(0.0, f"workers: going on with {run_dir}, after {self.core.state.steps} train steps")

    @property
    def core(self) -> Core:
        """The run as it is known now."""
        return self._stepper.core

    async def run(self) -> None:
        """Make the run, to its end; how it ended is in `failure` and `summary`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                supervisor = self._supervisor = Supervisor(
                    tasks, endpoint=self._server.endpoint, logs=self.directory.logs,
                    settings=worker_settings(self._config, str(self.directory.path), self._import_paths),
                    on_exit=self._post, key=self._local_key, is_forking=self._config.controller.fork_workers,
                    on_warning=self._warn,
                )  # fmt: skip
                self._stack.callback(supervisor.close)
                reader = tasks.create_task(self._read_prompts(), name="prompts")
                begin = tasks.create_task(self._begin(supervisor), name="begin")
                self._look()
                await self._over.wait()
                begin.cancel()
                reader.cancel()
                await self._close_workers(supervisor)
        except* Exception as errors:  # a task of ours broke, and with its siblings the workers are gone
            self._fail(first_cause(errors))
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
            self._model.send_files(peer)
            return
        if isinstance(message, CheckpointSaved) and not self._may_be_there(message):
            self._on_fault(peer, f"It saved {message.path}, where nothing is.")
            return
        self._post(events.Received(peer, message), frames)

    def _may_be_there(self, saved: CheckpointSaved) -> bool:
        """Whether the checkpoint is there, as far as one can look: batches are dropped for ever for it."""
        return not self._config.trainer.local or os.path.exists(saved.path)

    def _on_fault(self, peer: PeerId, reason: str) -> None:
        self._post(events.PeerFaulted(peer, reason))

    def _warn(self, text: str) -> None:
        """Tell the log, and whoever listens to warnings of the run."""
        log.warning(text)
        self._on_warning(text)

    def _post(self, event: events.Event, frames: tuple[bytes, ...] = ()) -> None:
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
            wanted = self._stepper.turn(now, batch)
            for command in wanted:
                self._execute(command)
            self._set_timer(now)
            self._snapshots.after_turn(self._stepper, events=len(batch), now=now)
            self._collector.after(len(batch) + len(wanted))
        except Exception as error:  # a bug of ours, or the disk: the run cannot go on
            self._fail(error)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.core.next_deadline()
        if deadline is not None and not self._over.is_set():
            delay_s = max(0.0, deadline - now) + 0.001  # loops round to ms; a Tick must not come early
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._post, events.Tick())

    def _look(self) -> None:
        """Say what is waited for: in status.json, and in the log if it takes too long."""
        if self._over.is_set():
            return
        pause_s = self._status.watch(self.core.snapshot_in_slices, time.monotonic() - self._start)
        asyncio.get_running_loop().call_later(pause_s, self._look)

    # -- commands ------------------------------------------------------------------------------------------

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.Send(peer, message):
                if isinstance(message, Close):
                    self._peers.pop(peer, None)
                if isinstance(message, Welcome):
                    message = self._prepared(message, self._server.role_of(peer))
                self._server.send(peer, message, self._store.fetch(message))
            case commands.Spawn(name, role, delay_s):
                self._supervisor.spawn(name, role, delay_s)
            case commands.ReadPrompts():
                self._prompts.ask_for(command)
            case commands.ReadHeldOut(first_group):
                rows, sources, digest = self._held_out
                self._post(events.HeldOutRead(first_group, sources, digest), rows)
            case commands.DropPayload(groups):
                self._stepper.doom(groups)
            case commands.Forget(peer, name):
                self._peers.pop(peer, None)
                self._server.forget(peer)
                self._model.forget(peer)
                self._supervisor.kill(name)
            case commands.ReportStep(metrics):
                self.directory.append_metrics(metrics)
                self._snapshots.add_line(metrics)
                self._status.note_step(metrics)
                self._on_step(metrics)
            case commands.ReportEvaluation(metrics):
                self.directory.append_evaluation(metrics)
                self._on_evaluation(metrics)
            case commands.Warn(text):
                self._warn(text)
            case commands.Progress(fraction, text):
                self._on_progress(fraction, text)
            case commands.Finish(is_success, reason):
                self._is_success, self._reason = is_success, reason
                self.failure = None if is_success else RunError(reason)
                self._over.set()

    async def _begin(self, supervisor: Supervisor) -> None:
        """Make the initial model if it is not there, then let the run begin."""
        try:
            await self._model.make(supervisor)
            held, self._inbox, self._is_held = self._inbox, [], False
            self.has_begun = True
            for event in self._first_events:
                self._post(event)
            self._inbox += held
            self._model.send_to_waiting()
        except Exception as error:  # the factory failed, or the disk
            self._fail(error)

    async def _read_prompts(self) -> None:
        try:
            await self._prompts.run(self._post, note=lambda at: self._stepper.note({"cursors": at}))
        except Exception as error:  # the source failed
            self._fail(error)

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
        grace_s = CLOSE_GRACE_S if self._is_success else FAILED_GRACE_S
        await supervisor.stop(grace_s, importing=lambda name: self.core.state.registry.named(name) is None)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._stack:
            reason = self._reason or "The run was cancelled."
            self.summary = {**self.core.summary(), "is_success": self._is_success, "reason": reason}
            self.summary |= {} if self._is_success else {"ending": "failed"}
            self._status.write_last(self.core.snapshot)
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

    def _prepared(self, message: Welcome, role: Role | None) -> Welcome:
        """Add what the core does not know; late checkpoints are set aside before a trainer gets it."""
        if role == "trainer":
            set_late_aside(self.directory.path, self.core.state.steps, tell=self._warn)
        settings = with_secrets(message.settings, self._config, str(self.directory.path), self._import_paths)
        key = self._weights_key if role in CHANNEL_ROLES else None
        return replace(message, settings=settings, weights_key=key.model_dump_json() if key else "")
