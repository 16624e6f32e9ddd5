"""Rewinds a run whose core broke an invariant to before the event at fault, and leaves that event out.

Invariants: the event at fault is the first after which the core breaks an invariant, found exactly by replay;
later events were handled by a broken core, so they are skipped, and their payload, samples and snapshots are
deleted; payload dropped since the last check is still there. A run is rewound once for each invariant; the
event that begins a run or an epoch cannot be left out.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from controller.core.core import Core
from controller.core.events import Event, PeerFaulted, Received, Restarted, Started
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.durability.payload import Known
from controller.durability.recording import Recorded, Recording
from controller.durability.replay import CoreFailed, in_words, turns
from controller.durability.store import Store
from controller.durability.violation import BrokenInvariant, Violation, violation_of
from controller.host.resumed_run import (
    MAX_ERROR_CHARS,
    MAX_SKIPPED,
    ResumedRun,
    derive,
    derive_with_skips,
)
from controller.host.run_directory import numbered
from controller.host.stepper import Stepper
from protocol.errors import OtherRelease, RunError
from protocol.files import exists
from protocol.messages.pieces import Segment
from protocol.plain_text import plain_line

BROKEN_AT = "broken_at"  # fact: number of the event after which the check found a broken core
FORGIVEN = "forgiven_invariants"  # fact: JSON list of the invariants (places) that the run was rewound for
ASIDE = "undone_"  # prefix of checkpoints of versions made after the event at fault

log = logging.getLogger("staleflow.controller")


@dataclass(frozen=True, slots=True)
class Fault:
    """The event after which the core broke an invariant."""

    recorded: Recorded
    violation: Violation
    author: str  # name of the worker that sent it; "" if none did


def leave_word(store: Store, stepper: Stepper, failure: Exception | None) -> None:
    """Write what the next controller needs to know, inside a transaction.

    If the core is broken, since which event; if not, dropped payload may be deleted.
    """
    broken_at = failure.number if isinstance(failure, BrokenInvariant) else 0
    if not broken_at and violation_of(stepper.core) is not None:
        broken_at = stepper.last
    if broken_at:
        store.put_fact(BROKEN_AT, str(broken_at))
    else:
        stepper.passed(stepper.last)
    stepper.write_rest()


def gone_back(recording: Recording) -> ResumedRun:
    """The run as it stands, or if its core is broken, as it stood before the event at fault.

    Raises: RunError if the run was rewound for that invariant before, or the event cannot be left out; as
    `derive_with_skips`, unless the core was broken before the event on which it fails.
    """
    noted, faults = dict(recording.skipped), list[PeerFaulted]()
    try:
        past = derive_with_skips(recording, faults)
    except CoreFailed as failed:
        broken_at = failed.recorded.number - 1
        past = derive(recording, until=broken_at)
        if violation_of(past.core) is None:
            raise
        past.skipped = {n: why for n, why in recording.skipped.items() if n not in noted}
        past.faults = faults
    else:
        broken_at = recording.told(BROKEN_AT, int, 0)
        is_mended = broken_at in recording.skipped
        if violation_of(past.core) is not None:
            broken_at = recording.last
        elif not broken_at or is_mended:
            return past
    fault = event_at_fault(recording, broken_at)
    if fault is None:  # such as with another release that has no such bug
        return past
    _refuse_stricter(recording, fault)
    forgiven = recording.told(FORGIVEN, list, [])
    _refuse_again(recording, fault, forgiven)
    return _without(recording, past, fault, [*forgiven, fault.violation.place])


def event_at_fault(recording: Recording, broken_at: int) -> Fault | None:
    """The event up to `broken_at` that made the core break an invariant; None if it breaks none there.

    Bisects from the newest snapshot that keeps all invariants.
    """
    number, core = _newest_whole(recording, broken_at)
    freezer, strategies = Freezer(), recording.strategies()
    image = freezer.freeze(core)

    def at(until: int) -> Core:
        core = thaw(image, strategies)
        for _ in turns(recording, core, number, until):
            pass
        return core

    found = violation_of(at(broken_at), is_strict=True)
    if found is None:
        return None
    while broken_at - number > 1:
        middle = (number + broken_at) // 2
        core = at(middle)
        violation = violation_of(core, is_strict=True)
        if violation is None:
            number, image = middle, freezer.freeze(core)
        else:
            broken_at, found = middle, violation
    (recorded,) = recording.events(number, broken_at)
    event, core = recorded.event, thaw(image, strategies)
    worker = core.state.registry.workers.get(event.peer) if isinstance(event, Received) else None
    return Fault(recorded, found, worker.name if worker is not None else "")


def _newest_whole(recording: Recording, before: int) -> tuple[int, Core]:
    """The newest core that keeps its invariants, and the number of its last event."""
    for snapshot in recording.snapshots():
        if snapshot.number < before and violation_of(snapshot.core, is_strict=True) is None:
            return snapshot.number, snapshot.core
    return recording.pruned, recording.make_core()


def _refuse_stricter(recording: Recording, fault: Fault) -> None:
    """Refuse to go back behind a check that the core has passed in another release. Raises: OtherRelease.

    That release kept a snapshot of it, so either it has fewer invariants, or this one is wrong about one; and
    hours of work may lie behind the event.
    """
    recorded, newest = fault.recorded, max(recording.snapshot_numbers, default=0)
    if recorded.number <= newest and (other := recording.other_release(recorded.number)):
        raise OtherRelease(
            f"After event {recorded.number} of {recording.path} ({in_words(recorded)}) the core breaks an "
            f"invariant of this release: {fault.violation.words}. The release that made the run ({other}) "
            f"found it whole up to event {newest}. One of the two is wrong: please report it with run.db."
        )


def _refuse_again(recording: Recording, fault: Fault, forgiven: list[str]) -> None:
    recorded, violation = fault.recorded, fault.violation
    text = (
        f"The core breaks an invariant after event {recorded.number} of {recording.path} "
        f"({in_words(recorded)}): {violation.words}."
    )
    report = f"This is a bug: please report it with run.db and this traceback.\n{violation.trace}"
    if violation.place in forgiven:
        raise RunError(f"{text} The run went back for it once, and it is broken again. {report}")
    if isinstance(recorded.event, Started | Restarted):
        raise RunError(f"{text} An event that begins a run cannot be left out. {report}")
    if sum(bool(reason) for reason in recording.skipped.values()) >= MAX_SKIPPED:
        raise RunError(f"{text} {MAX_SKIPPED} events of the run were passed over before. {report}")


def _without(recording: Recording, broken: ResumedRun, fault: Fault, forgiven: list[str]) -> ResumedRun:
    """The run before the fault; words that `broken` has just passed over before that stay passed over."""
    number, event = fault.recorded.number, fault.recorded.event
    reason = f"After {_named(event, fault.author)} the core broke an invariant: {fault.violation.words}."
    is_noted = recording.skipped.keys() - broken.skipped.keys()  # in run.db
    undone = [n for n in range(number + 1, recording.last + 1) if n not in is_noted]
    earlier = {n: why for n, why in broken.skipped.items() if n < number}
    log.error("%s\n%s", reason, fault.violation.trace)
    skipped = {**earlier, number: reason, **dict.fromkeys(undone, "")}
    recording.skipped |= skipped
    past = derive(recording, until=number - 1)
    past.skipped, past.faults = skipped, broken.faults[: len(earlier)]
    past.forgiven = forgiven
    if isinstance(event, Received):
        past.faults.append(PeerFaulted(event.peer, plain_line(reason)[:MAX_ERROR_CHARS]))
    behind = f", and the {len(undone)} events behind it with it" if undone else ""
    past.notes.append(
        f"The run goes back to before event {number}, which is left out{behind}; it has made "
        f"{past.core.state.steps} train steps by then. This is a bug: please report it with run.db."
    )
    return past


def _named(event: Event, author: str) -> str:
    """An event and its author, in words."""
    if isinstance(event, Received):
        return f"{type(event.message).__name__} of {author or event.peer}"
    return f"the event {type(event).__name__}"


def write_way_back(store: Store, past: ResumedRun, run: Path) -> list[str]:
    """Mark skipped events, inside a transaction, and delete their payload; returns warnings.

    If the run went back, samples of later steps are deleted as well, and snapshots of the broken core.
    """
    told = []
    for number, reason in past.skipped.items():
        store.skip(number, reason)
        if reason:
            told.append(f"Event {number} of the run is passed over. {reason}")
    if BROKEN_AT in store.facts():
        store.put_fact(BROKEN_AT, "0")  # the event at fault is left out, or this release finds the core whole
    if past.forgiven:
        store.put_fact(FORGIVEN, json.dumps(past.forgiven))
        evaluated = {report["policy_version"] for report in past.core.evaluation.reports}
        store.drop_undone(min(past.skipped), steps=past.core.state.steps, evaluated=evaluated)
        store.keep_tokens(_known_tokens(past.core))
        set_late_aside(run, past.core.state.steps, tell=told.append)
    return told


def _known_tokens(core: Core) -> Known:
    """Number of tokens of each attempt that the core counts."""
    known: Counter[tuple[int, int, int]] = Counter()

    def count(group: int, member: int, segments: Iterable[Segment]) -> None:
        for segment in segments:
            known[group, member, segment.attempt] += segment.count

    for group in core.state.groups.values():
        for member in group.members:
            count(group.id, member.id.member, member.segments)
    kept = [item for batch in core.state.batches.values() for item in batch.items]
    if core.evaluation.round is not None:  # answers that become samples when it ends
        kept += [item for one in core.evaluation.round.worst.groups for item in one.items]
    for item in kept:
        if item.group not in core.state.groups:
            count(item.group, item.member, item.segments)
    return known


def set_late_aside(run: Path, steps: int, *, tell: Callable[[str], None]) -> None:
    """Rename checkpoints of versions that the run has not made, and `tell` of each.

    Call it before a trainer looks for a checkpoint: one that outlived its controller may have finished such
    a checkpoint since the run was resumed. Raises: RunError if the disk refuses.
    """
    for path in set_checkpoints_aside(run, steps):
        tell(f"{path} is of a version that does not count any more.")


def set_checkpoints_aside(run: Path, steps: int) -> list[Path]:
    """Rename checkpoints of versions after `steps`, so that no trainer finds them.

    Raises: RunError if the disk refuses.
    """
    moved = []
    for path in sorted(run.glob("checkpoints/step_*")):
        number = path.name.removeprefix("step_")
        if number.isdecimal() and int(number) > steps:
            aside = path.with_name(f"{ASIDE}{path.name}")
            aside = numbered(aside) if exists(aside) else aside
            try:
                moved.append(path.rename(aside))
            except OSError as error:
                raise RunError(
                    f"{path} cannot be renamed to {aside.name}: {error.strerror}. It is of a version that "
                    f"does not count any more, as the run has made {steps} train steps, and a trainer would "
                    "load it later. Move it out of the folder, and give the same command."
                ) from error
    return moved
