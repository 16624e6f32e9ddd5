"""Consumes batches for the trainer, accounts its steps and asks for checkpoints.

Invariants: the trainer has at most one batch; batches are consumed once and in the order of versions, however
often one is trained on because a trainer was lost; no trajectory in a batch is older than the bound, which is
asserted here; each step is reported once.
"""

from collections import Counter
from itertools import chain
from statistics import fmean

from controller.core.commands import KeepSamples, ReportStep, Warn
from controller.core.decisions.training.logprob_drift import LogprobDrift
from controller.core.decisions.training.trainer_batches import TrainerBatches
from controller.core.events import OLD_RULES
from controller.core.state.accounts import without_rollout
from controller.core.state.batches.contributions import Batch, Contribution, ages_of
from controller.core.state.batches.figures import BatchFigures
from controller.core.state.ledger import Ledger
from controller.core.state.registry import Worker
from controller.core.state.run_state import RunState
from controller.core.state.told import ToldTrainer
from controller.core.state.transitions import move_group
from controller.core.state.views.admission import admission_view
from controller.core.state.views.instances import instance_view
from controller.core.state.views.machines import devices_of, memory_figures
from protocol.messages import (
    CheckpointSaved,
    Ready,
    SaveCheckpoint,
    TrainStepFinished,
)
from strategies import pacing


class Training:
    """Decides what the trainer does."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.trainer_batches = TrainerBatches(state)
        self.batch: tuple[int, ...] = ()  # consumed groups whose step is not finished
        self.checkpoint_of: int | None = None  # version that is being written
        self._is_checkpoint_ordered = False  # whether an operator wants that one
        self._lost_checkpoint: int | None = None  # that a lost trainer was writing; None with a trainer
        self._idle_since: float | None = None
        self._enough_at: float | None = None  # since when a whole batch of groups has been occupied
        self._ready_at: float | None = None  # since when no straggler holds that batch back
        self._consumed_at: float | None = None
        self.held_until: float | None = None  # when a ready batch that is held for an even pace will be sent
        self.figures = BatchFigures((), 0)
        """Figures of `batch`."""
        self._sources = [source.name for source in state.config.data.sources]
        self.drift = LogprobDrift(state.config.trainer.logprob_gap_warning)

    @property
    def is_busy(self) -> bool:
        """Whether a batch is in training or has to be repeated, so that the next one must wait."""
        return bool(self.batch) or self.trainer_batches.is_behind

    def go_on(self) -> None:
        """Do a part of the work that is spread over events, as batches may have thousands of groups."""
        self.figures.go_on()
        self.state.disposal.go_on()

    def can_begin(self) -> bool:
        """Whether a complete batch would be sent to the trainer now."""
        return self._is_free() and not self._holds()

    @property
    def is_unfinished(self) -> bool:
        """Whether the ready trainer has something to train, publish or save."""
        trainer = self.state.registry.trainer()
        if trainer is None:
            return False
        assert isinstance(trainer.told, ToldTrainer)
        has_reached = self.state.versions.has_reached
        is_hidden = any(not has_reached(version) for version in trainer.told.may_publish)
        return self.is_busy or self.checkpoint_of is not None or is_hidden

    @property
    def has_next(self) -> bool:
        """Whether an idle trainer could begin a batch or a checkpoint."""
        if self.state.ending is not None:
            return self.is_unsaved
        is_save_due = self.trainer_batches.is_save_due and self.checkpoint_of is None
        return is_save_due or (self.can_begin() and self.state.ledger.is_ready())

    def consume(self) -> bool:
        """Send the next batch if there is one and the trainer is free; returns whether one was sent."""
        if not self._is_free():
            return False
        if self._enough_at is None and self.state.ledger.occupied >= self.state.ledger.batch_groups:
            self._enough_at = self.state.now
        if not self.state.ledger.is_ready():
            return False
        self._ready_at = self.state.now if self._ready_at is None else self._ready_at
        if self._holds() or self.state.device in ("rollout", "changing"):
            return False
        ready, trainer = self.state.ledger.ready_batch(), self.state.registry.trainer()
        assert ready is not None
        assert trainer is not None
        train_version = self.state.ledger.train_version
        rest = sorted(set(ready).difference(self.trainer_batches.ahead))
        assert len(rest) + len(self.trainer_batches.ahead) == len(ready), (
            f"{self.trainer_batches.ahead} are not all in {ready}"
        )
        groups = [self.state.groups[id] for id in (*self.trainer_batches.ahead, *rest)]
        contributions = [group.contribution or group.contribute() for group in groups]
        self._check_bound(contributions, train_version=train_version)
        self._adapt()
        self.state.ledger.consume(ready)
        for group, contribution in zip(groups, contributions, strict=True):
            move_group(group, "consumed")
            self.state.windows.trained(group, contribution, train_version)
        self.batch = tuple([group.id for group in groups])
        self.figures = BatchFigures(contributions, train_version, self._sources)
        if self._idle_since is not None:
            self.state.accounts.spend("wait", self.state.now - self._idle_since)
        items = tuple(chain.from_iterable([contribution.items for contribution in contributions]))
        self.trainer_batches.add(Batch(train_version, self.batch, items), trainer.peer)
        for group in groups:
            group.contribution = None
        return True

    def run_ahead(self) -> None:
        """Let a waiting trainer begin on groups that are certain to be in its batch.

        At least one group is held back for the `Train` that takes the step.
        """
        if not self.state.config.trainer.streaming or self.state.paused is not None:
            return
        trainer, sent = self.state.registry.trainer(), self.trainer_batches
        if trainer is None or self.is_busy or sent.is_ahead:
            return
        ledger = self.state.ledger
        assert isinstance(ledger, Ledger), "config_rules refuses the others"
        room = ledger.batch_groups - 1 - len(sent.ahead)
        certain = [id for id in ledger.settle() if id not in sent.ahead][:room] if room else []
        if certain:
            sent.send_ahead([self.state.groups[id] for id in certain], trainer.peer)

    def _is_free(self) -> bool:
        is_there = self.state.registry.trainer() is not None
        may = self.state.ending is None and self.state.paused is None
        return is_there and not self.is_busy and may

    def _holds(self) -> bool:
        """Whether a ready batch waits so that steps come at an even pace; sets `held_until` if so.

        It waits no longer than groups with a reservation are still generated.
        """
        state, staleness = self.state, self.state.config.staleness
        if self._consumed_at is None or not state.strategy_settings.is_tail_bound:
            return False
        hold_s = pacing.hold_s(state.pace, evenness=staleness.pace, window=staleness.max_staleness + 1)
        until = self._consumed_at + hold_s
        if hold_s <= 0 or state.now >= until or not state.ledger.reserved:
            return False
        self.held_until = until
        return True

    def _adapt(self) -> None:
        """Adapt the cap on groups in the system to the wait for this batch."""
        state, now = self.state, self.state.now
        if self._consumed_at is not None and self._idle_since is not None:
            period_s = max(now - self._consumed_at, 1e-9)
            enough_at = now if self._enough_at is None else self._enough_at
            ready_at = now if self._ready_at is None else self._ready_at
            state.pace = pacing.after_step(
                state.pace,
                period_s=period_s,
                starved_s=max(0.0, enough_at - max(self._idle_since, self._consumed_at)),
                late_s=max(0.0, ready_at - max(enough_at, self._idle_since, self._consumed_at)),
                window=state.config.staleness.max_staleness + 1,
            )
            self._ask_for_pace(period_s)
        self._consumed_at = now
        is_enough = state.ledger.occupied >= 2 * state.ledger.batch_groups
        self._enough_at = now if is_enough else None
        self._ready_at = None

    def _ask_for_pace(self, period_s: float) -> None:
        """Let the pacing strategy set the cap and mu."""
        state, staleness, settings = self.state, self.state.config.staleness, self.state.strategy_settings
        is_tail_bound = pacing.is_tail_bound(state.pace, settings.is_tail_bound)
        settings = state.strategy_settings = settings._replace(is_tail_bound=is_tail_bound)
        step = pacing.StepView(
            state.pace,
            admission_view(state),
            settings.mu,
            staleness.mu,
            staleness.adaptive_mu,
            gated=state.gated.take(state.now) / period_s,
            long_share=state.lengths.long_share() if staleness.adaptive_mu else 0.0,
            elasticity=pacing.elasticity(instance_view(state, one) for one in state.registry.instances()),
            objective=pacing.objective_of(staleness.objective),
            waiting=self._waiting(),
        )
        cap, mu = state.strategies.adapt(step)
        state.pace = state.pace._replace(cap=max(cap, self._least_cap))
        state.strategy_settings = settings._replace(mu=mu)

    @property
    def _least_cap(self) -> float:
        """Groups of one batch; with fewer in the system no batch would ever be complete."""
        return float(self.state.ledger.batch_groups + self.state.ledger.spare_groups)

    def restart(self) -> None:
        """The controller was restarted, perhaps with another configuration."""
        self.state.pace = self.state.pace._replace(cap=max(self.state.pace.cap, self._least_cap))
        self.end_after_last_step()

    def forget_pause(self, since_s: float) -> None:
        """A pause that began then is over: learn nothing from its step, and count it as no waiting."""
        self._consumed_at = None
        self.state.gated.take(self.state.now)
        if self._idle_since is not None:
            self._idle_since += self.state.now - max(self._idle_since, since_s)

    def _waiting(self) -> float:
        """Share of the episodes in flight that wait for their environments; 0 without agents."""
        if not self.state.config.agent.is_on:
            return 0.0
        groups = (group for group in self.state.groups.values() if group.state == "generating")
        states = Counter(member.state for group in groups for member in group.members)
        at_work = states["queued"] + states["running"]
        return states["waiting"] / max(1, states["waiting"] + at_work)

    def on_ready(self, trainer: Worker, message: Ready) -> None:
        """A trainer is ready: send it the batches that it has missed."""
        self._idle_since = self.state.now
        self.state.versions.passed = message.policy_version - 1
        self.trainer_batches.attach(trainer.peer, message.policy_version)
        if self._lost_checkpoint is not None and self._lost_checkpoint > self.trainer_batches.saved_version:
            self.state.is_save_wanted = True  # where it has not completed it
        self._lost_checkpoint = None
        self.save_if_due(trainer)

    def on_lost(self) -> None:
        """The trainer is gone; its successor resumes from a checkpoint with the batches kept since."""
        self.trainer_batches.lose()
        self.state.is_save_wanted |= self.checkpoint_of is not None and self._is_checkpoint_ordered
        if self.checkpoint_of is not None and self.state.rules > OLD_RULES:
            self._lost_checkpoint = self.checkpoint_of
        self.checkpoint_of = self.held_until = None

    def on_finished(self, trainer: Worker, message: TrainStepFinished) -> bool:
        """Account a finished batch and report its step; returns whether the step is new."""
        if not self.trainer_batches.finish(message.policy_version):
            return False
        self._idle_since = self.state.now
        is_new = message.policy_version > self.state.steps
        if is_new:
            self._account(message)
        else:
            self.state.accounts.counts["trainer/steps_again"] += 1
            self.trainer_batches.go_on(trainer.peer)
        self.end_after_last_step()
        if self.state.ending is None:
            self.save_if_due(trainer)
        return is_new

    def end_after_last_step(self) -> None:
        """End the run if it has made all its steps."""
        if self.state.steps >= self.state.config.run.steps:
            self.state.end(f"All {self.state.steps} train steps are made.", is_success=True)

    def _account(self, message: TrainStepFinished) -> None:
        if kept := self.trainer_batches.kept(self.state.batches[self.state.steps]):
            self.state.emit(KeepSamples(self.state.steps + 1, kept))
        groups = [self.state.groups.pop(id) for id in self.batch]
        for group in groups:
            move_group(group, "trained")
        self.state.accounts.close(self.figures.tokens, "trained")
        self.state.disposal.add(groups)
        self.batch = ()
        self.state.steps += 1
        accounts = self.state.accounts
        self.state.failures.preemptions.step(accounts.counts["preemptions"], sum(accounts.ages.values()))
        self.state.accounts.spend("train", message.train_s)
        metrics = dict(message.metrics)
        errors = [i.fit.error for i in self.state.registry.instances() if i.fit and i.fit.error is not None]
        more: dict[str, object] = {
            "staleness/cap": round(self.state.pace.cap / self.state.ledger.batch_groups, 4),
            "cost_model/error": fmean(errors) if errors else None,
            **self.state.windows.figures(),
            **memory_figures(self.state.registry.workers.values()),
            **self.state.device_figures,
        }
        line = self.state.accounts.step_line(
            self.state.now,
            step=self.state.steps,
            batch={**self.figures.line(), "trajectories": self.figures.responses},
            trainer=metrics,
            more=more,
            devices=devices_of(self.state.config),
        )
        if skipped := metrics.get("skipped_steps"):
            self.state.warn_once(
                "skipped",
                f"{skipped:g} optimizer steps of version {self.state.steps} were skipped, because their "
                "loss or gradient was not finite. The trainer's log names them; later ones are only counted.",
            )
        is_supervised = self.state.config.trainer.is_supervised
        self.state.emit(ReportStep(without_rollout(line) if is_supervised else line))
        if warning := self.drift.observe(self.state.steps, metrics):
            self.state.emit(Warn(warning))

    @property
    def is_unsaved(self) -> bool:
        """Whether a batch is in training, or a finished step is in no checkpoint."""
        return bool(self.batch) or self.trainer_batches.saved_version < self.state.steps > 0

    @property
    def may_save(self) -> bool:
        """Whether the trainer can save now: it has the newest version and its device, and is not saving.

        A trainer copies the state to be saved before it handles later orders, and writes it meanwhile.
        """
        has_device = self.state.device in ("own", "trainer")
        return not self.is_busy and self.checkpoint_of is None and has_device

    @property
    def holds_up_the_end(self) -> bool:
        """Whether the end waits for the attached trainer: it works, saves, or needs the device to save."""
        return self.is_busy or self.checkpoint_of is not None or (self.is_unsaved and not self.may_save)

    def save_if_due(self, trainer: Worker) -> None:
        """Ask the ready trainer for a checkpoint if one is due and it can save now."""
        if self.trainer_batches.is_save_due and self.may_save:
            self.save(trainer)

    def save(self, trainer: Worker) -> None:
        """Ask for a checkpoint of the newest version."""
        self.checkpoint_of = self.state.steps
        self._is_checkpoint_ordered, self.state.is_save_wanted = self.state.is_save_wanted, False
        self.state.send(trainer.peer, SaveCheckpoint(self.state.steps))

    def on_saved(self, message: CheckpointSaved) -> None:
        """A checkpoint is complete: drop the batches that it covers."""
        if self.checkpoint_of == message.policy_version:
            self.checkpoint_of = None
            self.trainer_batches.cover(message.policy_version)
            trainer = self.state.registry.trainer()
            if self.state.is_save_wanted and trainer is not None and self.state.ending is None:
                self.save_if_due(trainer)

    def is_awaited(self, policy_version: int) -> bool:
        """Whether this version is the newest and will be published again.

        It will if its trainer is lost, or its successor has not made or not published it again yet.
        """
        newest = self.state.versions.newest
        is_newest = newest is not None and newest.policy_version == policy_version
        trainer = self.state.registry.trainer()
        if not is_newest or trainer is None or self.trainer_batches.is_behind:
            return is_newest
        return isinstance(trainer.told, ToldTrainer) and policy_version in trainer.told.may_publish

    def _check_bound(self, contributions: list[Contribution], *, train_version: int) -> None:
        """Count the staleness of a batch, and assert the bound if the ledger promises it."""
        ages = ages_of(contributions, train_version)
        if ages.total() < sum([len(contribution.items) for contribution in contributions]):
            for one in contributions:  # trajectories without a sampled token
                ages[train_version - one.oldest] += len(one.items) - sum(one.first_versions.values())
        self.state.accounts.consume(+ages)
        if self.state.ledger.is_strict:
            assert max(ages) <= self.state.config.staleness.max_staleness, (
                f"a trajectory is {max(ages)} versions old"
            )
