"""The one decision point of a run: `step(now, event) -> commands`, pure and deterministic.

Invariants: no clock, socket, disk, global randomness or tensor; the same events at the same times give the
same commands under any hash seed; a peer's fault is an event and never an exception. The order inside a step
is fixed: absorb the event (or all reports that came together), expire leases, consume a batch (frees
headroom), remove useless groups, train ahead, schedule evaluations, pull (changes which instances may be
routed to), migrate, dispatch, assign encoding and scoring, read ahead, retire versions, notice the end.
"""

from collections.abc import Generator
from typing import assert_never

from controller.config.models import Config
from controller.core.cluster_snapshot import snapshot_in_slices, snapshot_of
from controller.core.commands import Command, Warn
from controller.core.controls import obey
from controller.core.decisions.evaluation.evaluation_placement import EvaluationPlacement
from controller.core.decisions.evaluation.evaluation_schedule import EvaluationSchedule
from controller.core.decisions.placement.dispatch import Dispatch
from controller.core.decisions.placement.migration import Migrations
from controller.core.decisions.placement.report_pace import ReportPace
from controller.core.decisions.placement.reports import InstanceReports
from controller.core.decisions.placement.shared_device import SharedDevice
from controller.core.decisions.placement.stragglers import Stragglers
from controller.core.decisions.supply.episode_starts import EpisodeStarts
from controller.core.decisions.supply.episodes import Episodes
from controller.core.decisions.supply.prompt_order import Sampling
from controller.core.decisions.supply.scoring import Scoring
from controller.core.decisions.supply.supervised import SupervisedGroups
from controller.core.decisions.supply.training_groups import TrainingGroups
from controller.core.decisions.training.training import Training
from controller.core.decisions.versions.publication import Publication
from controller.core.decisions.versions.pulls import Pulls
from controller.core.decisions.versions.relay_tree import RelayTree
from controller.core.decisions.workers.limits import Limits, Silent
from controller.core.decisions.workers.lost_instances import LostInstances
from controller.core.decisions.workers.membership import Membership
from controller.core.decisions.workers.plausibility import Plausibility
from controller.core.decisions.workers.reattachment import Reattachment
from controller.core.device_sharing import share_device
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.effects.purposes import Purposes
from controller.core.events import (
    Event,
    HeldOutRead,
    PeerFaulted,
    PromptsRead,
    Received,
    Restarted,
    Started,
    StopRequested,
    Tick,
    WorkerExited,
)
from controller.core.hearing import hear
from controller.core.invariants import check_invariants
from controller.core.liveness import still_until, watch
from controller.core.postponed import Postponed
from controller.core.shutdown import is_out_of_data, notice_end_of_data, wind_up
from controller.core.state.bottleneck import Cause
from controller.core.state.run_state import RunState
from controller.core.state.views.instances import InstanceViews
from controller.core.state.views.snapshot import ClusterSnapshot
from controller.core.totals import summary
from controller.core.waiting_for import awaited
from controller.core.wanted_payload import foretelling, groups_with_payload, keeps_payload
from controller.core.worker_settings import worker_settings
from protocol import messages
from protocol.messages import Attach, Message
from strategies.kinds import Strategies

OVERDUE_S = 1.0  # a step that is later than the core's own deadline by more: the controller was stalled


class Core:
    """A run as a state machine. Hosts: the shell (asyncio, sockets) and the simulation (virtual time)."""

    def __init__(
        self, config: Config, strategies: Strategies, *, run_dir: str = "", import_paths: tuple[str, ...] = ()
    ) -> None:
        self.state = RunState(config, strategies)
        self.is_undecided = False  # an event was absorbed and not decided upon yet
        self.postponed = Postponed()
        self._cause: Cause = "start-up"  # what the next train step waited for at the last look
        self.views = InstanceViews(self.state)
        self.evaluation = EvaluationRounds(self.state)
        self.training_groups = TrainingGroups(self.state)
        self.purposes = Purposes(self.training_groups, self.evaluation)
        self.evaluation_schedule = EvaluationSchedule(self.state, self.evaluation)
        self.evaluation_placement = EvaluationPlacement(self.state, self.evaluation)
        self.reports = InstanceReports(self.state, self.evaluation, self.purposes)
        self.dispatch = Dispatch(self.state, self.views)
        self.report_pace = ReportPace(self.state)
        self.migrations = Migrations(self.state, self.views)
        self.stragglers = Stragglers(self.state)
        self.shared_device = SharedDevice(self.state, self.evaluation)
        self.relay_tree = RelayTree(self.state)
        self.pulls = Pulls(self.state, self.relay_tree, self.evaluation)
        self.publication = Publication(self.state, self.relay_tree, self.evaluation)
        self.supervised_groups = SupervisedGroups(self.state)
        self.sampling = Sampling(self.state)
        self.scoring = Scoring(self.state, self.evaluation, self.purposes)
        self.episode_starts = EpisodeStarts(self.state, self.evaluation)
        self.episodes = Episodes(self.state, self.purposes, self.evaluation)
        self.training = Training(self.state)
        self.limits = Limits(self.state)
        self.plausibility = Plausibility(self.state)
        self.reattachment = Reattachment(self.state, self.views, self.evaluation)
        settings = self.settings = worker_settings(config, run_dir, import_paths)
        """Settings that every worker is sent when it attaches."""
        self.lost_instances = LostInstances(self.state, self.purposes)
        self.membership = Membership(
            self.state, self.views, self.evaluation, self.scoring, self.training, settings.model_dump_json()
        )

    def step(self, now: float, event: Event, *, decides: bool = True) -> list[Command]:
        """Commands that follow from this event. `now`: seconds since the run began, never decreasing.

        With `decides` False the event is only absorbed, and the core is `undecided` until the next call: of
        events that came together, only the last one needs a decision. An event that reports only progress
        may be decided upon with a later one (see `postponed`).
        After its end a run gives no commands, unless `Restarted` takes it up again.
        """
        state = self.state
        if state.finished and not isinstance(event, Restarted):
            return []
        assert now >= state.now, f"time went back from {state.now} to {now}"
        if now > state.now or not self.is_undecided:
            self._advance(now)
        state.now = now
        state.events += 1
        self.training.go_on()
        self._absorb(event)
        was_undecided, self.is_undecided = self.is_undecided, not decides
        if not decides:
            self.scoring.take_completed()
            return self._take_commands()
        if not was_undecided and self.postponed.may_wait(self, event):
            return []
        self.postponed.decided(now)
        return self._decide()

    def _advance(self, now: float) -> None:
        """Account the time since the last event."""
        state = self.state
        if self.postponed.until is None:  # else only progress was absorbed, which does not change the cause
            self._cause = awaited(self)
        cause = self._cause
        # while all busy instances pull, none of them generates
        busy = 0 if cause == "weights" else state.registry.busy_instances
        state.accounts.advance(now, cause=cause, ready=state.registry.ready_instances, busy=busy)
        self._forgive(now)

    def _decide(self) -> list[Command]:
        state = self.state
        self.membership.expire()
        self._enforce_limits()
        self.lost_instances.run()
        self.episodes.expire()
        self.scoring.take_completed()
        share_device(self)
        self.training.held_until = None  # set again below if a batch is still held
        if state.ending is None:
            self.supervised_groups.fill()
            self.sampling.run(is_end=self.scoring.is_exhausted)
            if not self.stragglers.is_off and self.training.can_begin():
                self.stragglers.give_up()
            if self.training.consume():
                self.training_groups.remove_useless()
            self.training.run_ahead()
            self.reports.give_up_lost_evaluation()
            self.evaluation_schedule.run()
            self.pulls.end_rests()
            self.pulls.serve_evaluation()
            self.pulls.run()
            if not self.pulls.is_cut:  # instances to be told next take no more work at their old version
                self.migrations.run()
                self.evaluation_placement.run()
                self.dispatch.run()
            self.report_pace.run()
            self.scoring.take_completed()
            self.scoring.assign()
            self.episode_starts.run()
            self.scoring.read_ahead()
            self.publication.retire()
            notice_end_of_data(self)
            if self.state.ending is not None:  # one of these decisions may have ended the run
                share_device(self)  # a trainer that has to save needs the device now
        if state.ending is not None:
            wind_up(self)
        wanted = self._take_commands()
        if watch(self):
            wind_up(self)
            wanted += self._take_commands()
        return wanted

    def _take_commands(self) -> list[Command]:
        wanted = self.state.take_commands()
        self.limits.see(wanted)
        return wanted

    @property
    def is_cut(self) -> bool:
        """Whether the last step reached a limit, so that the next one follows at once with the rest."""
        told = self.pulls.is_cut or self.report_pace.is_cut
        is_cut = told or self.dispatch.is_cut or self.evaluation_placement.is_cut
        return is_cut and self.state.ending is None

    def next_deadline(self) -> float | None:
        """When a Tick is due if no event comes before; None if no deadline is set."""
        if self.state.finished:
            return None
        if self.is_undecided or self.is_cut:
            return self.state.now
        moments = (
            self.postponed.until, self.state.registry.leases.next(), self.training.held_until,
            self.membership.vacant_until, self.limits.next(), self.episodes.next(),
            self.state.versions.rests.next(), still_until(self),
        )  # fmt: skip
        return min([moment for moment in moments if moment is not None], default=None)

    def snapshot(self) -> ClusterSnapshot:
        """The whole run now, frozen."""
        return snapshot_of(self)

    def snapshot_in_slices(self, workers: int) -> Generator[None, None, ClusterSnapshot]:
        """The same as a generator, with a pause after each `workers` rows; a row is as old as its slice."""
        return snapshot_in_slices(self, workers)

    def summary(self) -> dict[str, object]:
        """Totals for summary.json."""
        return summary(self)

    def check(self) -> None:
        """Assert every invariant. Raises: AssertionError."""
        check_invariants(self)

    # -- events -----------------------------------------------------------------------------------------

    def _absorb(self, event: Event) -> None:
        match event:
            case Received(peer, message):
                self._received(peer, message)
            case Started(rules):
                self.state.rules = rules
                self.membership.start()
                self.limits.restart()
            case Restarted():
                self._restart(event)
            case PeerFaulted():
                self.membership.faulted(event)
            case WorkerExited():
                self.membership.exited(event)
            case PromptsRead():
                self.scoring.on_prompts(event)
            case HeldOutRead():
                self.scoring.on_held_out(event)
            case StopRequested(reason):
                self.evaluation_schedule.stop()
                self.state.is_stopped |= self.state.ending is None
                self.state.end(reason, is_success=True)
            case Tick():
                self.dispatch.renew()
            case _:
                assert_never(event)

    def _restart(self, event: Restarted) -> None:
        """Begin another epoch of the run, however the last one ended."""
        state = self.state
        state.epoch += 1
        state.config = Config.model_validate_json(event.config)
        state.versions.forget()
        self.relay_tree.forget()
        self.settings = worker_settings(state.config, event.run_dir, event.import_paths)
        self.membership.settings = self.settings.model_dump_json()
        state.ending, state.ending_is_success, state.finished = None, True, False
        state.is_stopped = state.accounts.is_ending = state.is_trainer_given_up = False
        if state.paused is not None:
            state.emit(Warn(state.paused.in_words(state.now)))
        for worker in list(state.registry.workers.values()):
            if self.reattachment.may_come(worker):
                self.reattachment.expect(worker)
            else:
                self.membership.remove(worker.peer)
        self.membership.restart()
        self.limits.restart()
        self.shared_device.restart()
        self.report_pace.restart()
        self.training_groups.restart()
        self.scoring.restart()
        self.episodes.restart()
        self.evaluation_schedule.restart()
        self.training.restart()

    def _received(self, peer: str, message: Message) -> None:
        worker = self.state.registry.workers.get(peer)
        if worker is None:
            if isinstance(message, Attach):
                self.membership.attach(peer, message)
            elif isinstance(message, messages.DrainWorker):
                self.membership.drain(peer, message.name)
            elif isinstance(message, messages.Control):
                obey(self, peer, message)
            else:
                self.membership.on_unknown_peer(peer, message)
            return
        worker.last_heard = self.state.now
        reason = self.plausibility.objection(worker, message)
        if reason is not None:
            self.membership.faulted(PeerFaulted(peer, reason))
            return
        worker.told.hear(message, self.state.now)
        hear(self, worker, message)
        self.limits.heard(worker, message)

    @property
    def is_out_of_data(self) -> bool:
        """Whether no further batch can be completed, since all prompts were read."""
        return is_out_of_data(self)

    def keeps_payload(self, peer: str, message: Message) -> bool:
        """Whether to store the buffers of a message; those of an implausible message are not stored."""
        return keeps_payload(self.plausibility, self.state.registry.workers.get(peer), message)

    def foretelling(self, peer: str, message: Message) -> str | None:
        """Why a message whose buffers are not stored is implausible, whatever else came in its turn."""
        return foretelling(self.plausibility, self.state.registry.workers.get(peer), message)

    def groups_with_payload(self) -> list[int]:
        """Groups whose payload may still be read."""
        return groups_with_payload(self.state, self.evaluation.round)

    def _forgive(self, now: float) -> None:
        """Extend all leases by the time that the controller itself was stalled."""
        may_be = now - self.state.now > OVERDUE_S  # no deadline had passed before: see invariants.py
        if may_be and (overdue_s := now - (self.next_deadline() or now)) > OVERDUE_S:
            self.state.registry.forgive(now, overdue_s)
            self.membership.forgive(overdue_s)
            self.state.asleep_s += now - self.state.now

    def _enforce_limits(self) -> None:
        """Act on workers that exceeded a limit, and end the run if a role has been absent for too long."""
        for found in self.limits.overdue():
            if isinstance(found, Silent):
                self.reports.on_silent(*found)
            else:
                self.state.accounts.counts["limits/closed"] += 1
                self.membership.faulted(PeerFaulted(found.worker.peer, found.reason), has_died=True)
        if reason := self.limits.absent():
            self.state.end(reason, is_success=False)
