"""Liveness: proof that a run is not stuck, by naming what is running or which party is awaited until when.

Invariant of every run, after every event: something runs, or an instance pulls, or a named party is awaited
(with a deadline, except for the source of prompts), or the run is over, or a user's strategy has refused
work that could be placed. Work that can be placed is placed within `rollout.status_s`. A run in which only
the last of these holds, or none, for `controller.stuck_s` is ended with an explanation; time in which the
controller was stalled does not count. This module changes only `still_since`, and then the run's ending.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from controller.core.state.registry import Instance, Worker
from controller.core.state.views.admission import admitted
from controller.core.state.views.instances import takes_work
from controller.core.waiting_for import environment_in_words, working_on
from protocol.plain_text import sentence
from strategies.kinds import STRATEGIES

if TYPE_CHECKING:
    from controller.core.core import Core


class ReasonKind(StrEnum):
    """What keeps a run alive; REFUSED and STUCK do so for `controller.stuck_s` only."""

    OVER = "over"  # it has ended
    RUNS = "runs"  # a worker does what it was asked to
    PULLS = "pulls"  # instances load weights, and nothing else runs
    AWAITED = "awaited"  # a worker is to attach, get ready, answer or end
    PAUSED = "paused"  # an operator has paused it
    DATA = "data"  # the source of prompts has not answered
    REFUSED = "refused"  # a user's strategy does not start work that could start
    STUCK = "stuck"  # none of these: a bug of the core


class Reason(NamedTuple):
    """Why the run is alive."""

    kind: ReasonKind
    who: str  # the worker, role or key of the configuration that is at work or awaited
    until_s: float | None  # when the core acts on it, in seconds since the run began; None: never
    text: str  # one clause for people

    @property
    def is_still(self) -> bool:
        """Whether the run would stand still for ever."""
        return self.kind in (ReasonKind.REFUSED, ReasonKind.STUCK)


def why_alive(core: "Core") -> Reason:
    """The first reason that holds; running work is named before awaited parties."""
    if core.state.finished:
        return Reason(ReasonKind.OVER, "the run", None, core.state.ending or "")
    for find in (
        _at_work, _pulling, _environments, _resting, _owing, _starting, _absent, _paused, _held, _reading,
    ):  # fmt: skip
        if (found := find(core)) is not None:
            return found
    return _still(core)


def watch(core: "Core") -> bool:
    """Note whether the run stands still, and end it after `controller.stuck_s`; returns whether it ended."""
    state, trainer_batches = core.state, core.training.trainer_batches
    if state.registry.busy_instances or trainer_batches.making is not None or state.finished:  # nearly always
        state.still_since = None
        return False
    found = why_alive(core)
    if not found.is_still:
        state.still_since = None
        return False
    if state.still_since is None:
        state.still_since = state.awake_s
    until = still_until(core)
    if until is None or until > state.now:
        return False
    limit_s = state.config.controller.stuck_s
    text = f"Nothing can happen any more for {limit_s:g} s (controller.stuck_s): {found.text}."
    state.ending = f"{sentence(state.ending)} {text}" if state.ending else text
    state.ending_is_success = False
    return True


def still_until(core: "Core") -> float | None:
    """When a run that stands still is ended; None if it does not."""
    state = core.state
    if state.still_since is None:
        return None
    return state.still_since + state.config.controller.stuck_s + state.asleep_s


def check_liveness(core: "Core", *, grace_s: float | None = None) -> None:
    """Check that the run is not stuck.

    Raises: AssertionError if it has been stuck for `grace_s`, by default the time between two load reports.
    """
    state = core.state
    grace_s = state.config.rollout.first_status_s if grace_s is None else grace_s
    if state.still_since is not None and state.awake_s - state.still_since >= grace_s:
        found = why_alive(core)
        assert found.kind != ReasonKind.STUCK, f"the run is stuck: {found.text}"


def idle_because(core: "Core") -> str:
    """Why nothing is generated, scored or trained now, in a sentence; "" while something is."""
    if core.state.finished:
        return ""
    found = why_alive(core)
    if found.kind == ReasonKind.RUNS:
        return ""
    text = f"{found.text}."
    if (until := still_until(core)) is not None:
        text += f" The run ends in {max(0.0, until - core.state.now):.0f} s (controller.stuck_s)."
    registry = core.state.registry
    names = {*registry.local, *(worker.name for worker in registry.workers.values())}
    return text if found.who in names else text[0].upper() + text[1:]  # orders want a name as it is


# -- running work and awaited parties ----------------------------------------------------------------------


def _at_work(core: "Core") -> Reason | None:
    state, now = core.state, core.state.now
    if core.is_cut:
        return Reason(ReasonKind.RUNS, "the controller", now, "more is told and placed at once")
    trainer = state.registry.trainer()
    if trainer is not None and core.training.trainer_batches.making is not None:
        return _of_worker(core, ReasonKind.RUNS, trainer)
    for instance in state.registry.instances():
        if instance.ready and instance.running and instance.pulling is None:
            return _of_worker(core, ReasonKind.RUNS, instance)
    for worker in state.registry.text_workers():
        if worker.pending:
            return _of_worker(core, ReasonKind.RUNS, worker)
    return None


def _pulling(core: "Core") -> Reason | None:
    for instance in core.state.registry.instances():
        if instance.pulling is not None:
            return _of_worker(core, ReasonKind.PULLS, instance)
    return None


def _resting(core: "Core") -> Reason | None:
    """An instance that failed to pull will try again after a rest."""
    until = core.state.versions.rests.next()
    if until is None:
        return None
    text = f"a pull that has failed is tried again in {max(0.0, until - core.state.now):.0f} s"
    return Reason(ReasonKind.AWAITED, "a pull", until, text)


def _environments(core: "Core") -> Reason | None:
    """The environment of an episode acts, with a deadline."""
    until = core.episodes.next()
    if until is None:
        return None
    episode = core.state.environments.first()
    text = f"group {episode.group} waits for {environment_in_words(core.state, episode)}"
    return Reason(ReasonKind.AWAITED, f"group {episode.group}", until, text)


def _owing(core: "Core") -> Reason | None:
    """A worker owes an answer, or is to get ready or to come back."""
    for worker in core.state.registry.workers.values():
        if core.limits.outlook(worker)[0] is not None:
            return _of_worker(core, ReasonKind.AWAITED, worker)
    return None


def _of_worker(core: "Core", kind: ReasonKind, worker: Worker) -> Reason:
    """What a worker does, and what the core will do about it and when."""
    what = working_on(core, worker) or core.limits.owed(worker)
    due_s, then = core.limits.outlook(worker)
    if due_s is None:
        return Reason(kind, worker.name, None, f"{worker.name} is {what}")
    text = f"{worker.name} is {what}; in {max(0.0, due_s):.0f} s {then}"
    return Reason(kind, worker.name, core.state.now + due_s, text)


def _starting(core: "Core") -> Reason | None:
    """A local process is starting or ending."""
    registry, now = core.state.registry, core.state.now
    for local in registry.local.values():
        if local.deadline is not None:
            text = (
                f"{local.name} is started; in {max(0.0, local.deadline - now):.0f} s it is given up if it is "
                "not ready (controller.attach_timeout_s)"
            )
            return Reason(ReasonKind.AWAITED, local.name, local.deadline, text)
        worker = registry.named(local.name)
        if worker is None or not worker.ready:  # it was told to end, or has, and the host will say so
            return Reason(ReasonKind.AWAITED, local.name, None, f"the process of {local.name} is ending")
    return None


def _absent(core: "Core") -> Reason | None:
    """A role has no worker, and one may still come."""
    now, until = core.state.now, core.membership.vacant_until
    if until is not None:
        text = "a worker in the place of one that was closed is awaited"
        key = "controller.replace_s"
        return Reason(ReasonKind.AWAITED, "a worker", until, f"{text}, for {until - now:.0f} s more ({key})")
    if (found := core.limits.vacancy()) is not None:
        role, until, key = found
        text = f"a {role} worker is awaited, for {until - now:.0f} s more ({key})"
        return Reason(ReasonKind.AWAITED, f"a {role} worker", until, text)
    return None


def _paused(core: "Core") -> Reason | None:
    if core.state.paused is None:
        return None
    text = f"an operator has paused the run: {core.state.paused.in_words(core.state.now).removesuffix('.')}"
    return Reason(ReasonKind.PAUSED, "an operator", None, text)


def _held(core: "Core") -> Reason | None:
    until = core.training.held_until
    if until is None or until <= core.state.now:
        return None
    left_s = until - core.state.now
    text = f"a batch is complete and goes to the trainer in {left_s:.0f} s (staleness.pace)"
    return Reason(ReasonKind.AWAITED, "staleness.pace", until, text)


def _reading(core: "Core") -> Reason | None:
    """Rows of prompts or held-out prompts were asked for; reading them has no deadline."""
    has_work = bool(core.state.fresh or core.state.queue or core.scoring.to_score)
    if core.scoring.reading and not has_work:
        text = f"the next {core.scoring.reading} rows of the data are awaited"
        return Reason(ReasonKind.DATA, "the source of prompts", None, text)
    found = core.evaluation.round
    if found is not None and found.sources is None:
        return Reason(ReasonKind.DATA, "the held-out prompts", None, "the held-out prompts are read")
    return None


# -- nothing runs and no party is awaited ------------------------------------------------------------------


def _still(core: "Core") -> Reason:
    """Work that could start and does not, and the strategy that refused it, if one did."""
    for key, text in _could_go_on(core):
        if key and getattr(core.state.config.staleness, key) not in STRATEGIES[key]:
            rule = getattr(core.state.config.staleness, key)
            refused = f"{text}, which staleness.{key} ({rule}) does not let it. Mend the function"
            return Reason(ReasonKind.REFUSED, f"staleness.{key}", None, refused)
        return Reason(ReasonKind.STUCK, "the core", None, f"{text}, and it does not. This is a bug{_REPORT}")
    ledger = core.state.ledger
    batch = f"batch {ledger.train_version} has {ledger.occupied} of {ledger.batch_groups} groups"
    batch += f", {ledger.reserved} are under way"
    text = f"nothing runs, nothing could start, and nobody is awaited ({batch})"
    return Reason(ReasonKind.STUCK, "the core", None, f"{text}. This is a bug{_REPORT}")


_REPORT = ": please report it with run.db and logs/controller.log"


def _could_go_on(core: "Core") -> Iterator[tuple[str, str]]:
    """Work that could start now, each with the key of `staleness` whose strategy decides it; "" if none."""
    state, scoring = core.state, core.scoring
    trainer = state.registry.trainer()
    if state.ending is not None:
        return
    if trainer is not None and not core.training.is_busy and state.ledger.is_ready():
        yield "", f"batch {state.ledger.train_version} is complete and could go to {trainer.name}"
    text_worker = next(state.registry.text_workers(), None)
    if scoring.to_score and text_worker is not None:
        yield "", f"group {next(iter(scoring.to_score))} could be scored by {text_worker.name}"
    worker = next(state.registry.agents(), None)
    if core.episode_starts.is_unplaced and worker is not None and not worker.episodes:
        yield "", f"an episode could begin at {worker.name}"
    for instance in state.registry.instances():
        if instance.ready:
            yield from _could_start(core, instance)


def _could_start(core: "Core", instance: Instance) -> Iterator[tuple[str, str]]:
    """What an idle instance could generate, at the version that it has or at the newest."""
    state = core.state
    newest = state.versions.newest
    if newest is None or state.versions.is_lost(newest.policy_version):
        return
    here, there = instance.policy_version, newest.policy_version
    versions = [here] if here >= 0 and takes_work(state, instance) else []
    for version in [*versions, *([there] if there > here else [])]:
        where = f"on {instance.name}, which is idle at version {here}"
        where += f", and could pull version {version}" if version != here else ""
        if state.held_out_queue.peek(version) is not None:
            yield "", f"a held-out response could run {where}"
        key = "routing" if version == here else ""  # with nothing to do at its version it pulls in any case
        if (waiting := state.queue.peek(version, state.ledger.reach(version))) is not None:
            yield key, f"response {waiting.id} could run {where}"
        elif core.state.fresh and state.ledger.can_reserve(version):
            key = key if admitted(state) > 0 else "admission"
            yield key, f"prompt {core.state.fresh[0]} could start {where}"
