"""Explains the answers of built-in strategies: the worth of each candidate, or why it was excluded.

Invariants: pure; computed by the strategies' own functions; the candidates marked as chosen are those that
the strategy chooses (tests/unit/controller/history/test_reasons.py). The user's own strategies are not
explained."""

from collections.abc import Sequence
from typing import NamedTuple

from strategies import admission, filtering, migration, outcomes, pacing, routing, synchronization
from strategies.admission import Admission, Batches
from strategies.cost_model import ideal_gain, throughput
from strategies.filtering import Filter
from strategies.migration import Migration, Running
from strategies.outcomes import TurnAdvantages, TurnsView
from strategies.pacing import Adaptation, StepView
from strategies.routing import NEWER, OLDER, Choose
from strategies.synchronization import Synchronization
from strategies.views import AdmissionView, InstanceView, Settings, SyncView, WorkView


class Candidate(NamedTuple):
    """One candidate of a choice."""

    id: int
    worth: float | None  # the larger, the better; None: it was excluded before the comparison
    is_chosen: bool
    why: str  # its worth in words, or the rule that excluded it


class Reasons(NamedTuple):
    """One decision explained."""

    rule: str  # the rule, in a sentence with its numbers
    candidates: tuple[Candidate, ...] = ()


def of_routing(
    choose: Choose, work: WorkView, instances: Sequence[InstanceView], settings: Settings
) -> Reasons | None:
    """Why a trajectory was routed to its instance; None for a rule of the user's."""
    match choose:
        case routing.by_marginal_gain:
            return _by_gain(work, instances, settings)
        case routing.by_group:
            home = [i for i in instances if i.has_sibling and routing.has_room(work, i)]
            found = _by_gain(work, home or instances, settings)
            rule = (
                "Members of a group stay together"
                if home
                else "No member of the group runs with room beside it"
            )
            others = [i for i in instances if home and i not in home]
            away = [Candidate(i.id, None, False, "holds no sibling with room beside it") for i in others]
            return Reasons(f"{rule}. {found.rule}", (*found.candidates, *away))
        case routing.by_least_requests:
            return _by_least(work, instances)
        case routing.round_robin:
            turn = work.group % max(1, len(instances))
            chosen = routing.round_robin(work, instances, settings)
            return Reasons(
                f"Groups in turn: group {work.group} begins at place {turn} of {len(instances)}, and takes "
                "the next with room.",
                tuple(Candidate(i.id, None, i.id == chosen, _room(work, i) or "has room") for i in instances),
            )
        case _:
            return None


def _by_gain(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> Reasons:
    chosen = routing.by_marginal_gain(work, instances, settings)
    length = routing.size(work, settings)
    found: list[Candidate] = []
    for instance in instances:
        if full := _room(work, instance):
            found.append(Candidate(instance.id, None, False, full))
            continue
        is_gated = settings.mu > 0 and instance.running and (work.is_fresh or settings.keeps_kv)
        now = routing.gain_now(instance, length, settings)
        least = settings.mu * ideal_gain(instance.coefficients, length)
        if is_gated and now < least:
            why = (
                f"crowded: it gains {now:.1f} tokens/s, under mu {settings.mu:g} of {least / settings.mu:.1f}"
            )
            found.append(Candidate(instance.id, None, False, why))
            continue
        gain = routing.lasting_gain(instance, length, settings)
        behind = settings.newest_version - instance.policy_version
        newer = instance.policy_version - work.min_version
        factor = OLDER**behind if work.is_fresh else NEWER**newer
        why = f"{gain:.1f} tokens/s until the next version" + (
            f" x {factor:.2f} for its version" if factor != 1 else ""
        )
        why += ", holds a sibling" if instance.has_sibling else ""
        found.append(Candidate(instance.id, gain * factor, instance.id == chosen, why))
    kind = (
        "fresh work prefers newer versions"
        if work.is_fresh
        else "begun work prefers the oldest that it may use"
    )
    rule = f"Where throughput grows most by its {length} tokens; {kind}."
    return Reasons(
        rule if chosen is not None else f"{rule} None has room at a gain worth it, so it waits.", tuple(found)
    )


def _by_least(work: WorkView, instances: Sequence[InstanceView]) -> Reasons:
    chosen = routing.by_least_requests(work, instances, Settings())
    candidates = [
        Candidate(i.id, None, False, full) if (full := _room(work, i))
        else Candidate(i.id, -float(i.running), i.id == chosen, f"{i.running} run there")
        for i in instances
    ]  # fmt: skip
    return Reasons("The instance with the fewest running trajectories.", tuple(candidates))


def _room(work: WorkView, instance: InstanceView) -> str:
    """Why the work cannot start there at once; "" if it can."""
    if instance.running >= instance.capacity:
        return f"full: {instance.running} of {instance.capacity} run there"
    wanted = instance.resident_tokens + work.resident_tokens
    return (
        f"its KV cache holds {instance.kv_tokens} tokens, {wanted} are wanted"
        if wanted > instance.kv_tokens
        else ""
    )


def of_synchronization(
    choose: Synchronization, instances: Sequence[SyncView], settings: Settings
) -> Reasons | None:
    """Why these instances pull now; None for a rule of the user's."""
    if choose not in synchronization.SYNCHRONIZATIONS.values():
        return None
    chosen = {*choose(instances, settings)}
    if settings.guard and not settings.is_batch_ready and not chosen:
        return Reasons("guard: nobody pulls before the batch is ready that updates the version.", tuple(
            Candidate(i.id, None, False, "the batch is not ready") for i in instances
        ))  # fmt: skip
    rules: dict[Synchronization, str] = {
        synchronization.greedy: "All, as soon as a version is published.",
        synchronization.by_gain: (
            f"Those for whom new weights are worth their cost; {settings.fresh} fresh responses wait."
        ),
        synchronization.by_status: (
            f"Those that have thinned out: {settings.indicator} at most {settings.indicator_threshold:g}."
        ),
        synchronization.every_few: f"All, at every version that {settings.sync_steps} divides.",
    }  # fmt: skip
    candidates = [
        _pull(choose, instance, settings, is_chosen=instance.id in chosen) for instance in instances
    ]
    return Reasons(rules[choose], tuple(candidates))


def _pull(choose: Synchronization, one: SyncView, settings: Settings, *, is_chosen: bool) -> Candidate:
    if choose == synchronization.by_status:
        value = synchronization.indicator(one, settings.indicator)
        why = f"{settings.indicator} {value:.3g}"
        why += f", {one.waiting} wait in its engine" if one.waiting else ""
        why += f", {one.useful} queued could run at its version" if one.useful else ""
        return Candidate(one.id, value, is_chosen, why)
    if choose != synchronization.by_gain:
        return Candidate(one.id, None, is_chosen, f"holds v{one.policy_version}")
    cost_s = one.pull_s + one.restart_s
    if not one.running:
        return Candidate(one.id, None, is_chosen, "idle: a pull costs nothing")
    if cost_s <= synchronization.CHEAP * settings.horizon_s:
        return Candidate(
            one.id, None, is_chosen,
            f"cheap: {cost_s:.3f} s of the {settings.horizon_s:.1f} s between two versions",
        )  # fmt: skip
    lost = synchronization.loss(one)
    gained = [synchronization.gain(one, count, settings) for count in range(1, min(settings.fresh, 512) + 1)]
    best = max(gained, default=0.0)
    words = f"dear: it would lose {lost:.0f} tokens; fresh work would add at most {best:.0f}"
    return Candidate(one.id, best - lost, is_chosen, words)


def of_admission(admit: Admission, view: AdmissionView, batches: Batches) -> Reasons | None:
    """Why so many groups may start; None for a rule of the user's."""
    in_system = view.generating + view.occupied
    held = admission.held(view)
    places = view.batch_groups + view.spare_groups
    match admission.window_rule(batches) if admit is admission.window else admit:
        case admission.adaptive:
            counted = held if view.is_tail_bound or view.is_fresh else in_system
            rule = f"The cap that pacing has found is {view.cap:.1f} groups; {counted} count as in the system"
        case admission.by_cap:
            rule = f"{batches:g} batches of {places} may be in the system; {held} count as there"
        case admission.whole_window:
            rule = f"The window holds {view.max_staleness + 1} batches of {places}; {in_system} are there"
        case admission.one_batch:
            rule = f"One batch of {places} at a time; {in_system} are there"
        case admission.areal:
            rule = (
                f"({view.max_staleness} + v{view.published_version} + 1) batches of {view.batch_groups} may "
                f"ever have started; {view.started} have"
            )
        case admission.roll_flash:
            window = view.max_staleness + 1
            rule = f"{window} batches of {view.batch_groups} running or complete; {in_system} are"
        case admission.prime_rl:
            rule = "Whatever the instances have room for"
        case admission.verl_async:
            rule = (
                f"A quota per update, less the {view.in_system_at_pull} there when it came and the "
                f"{view.started_since_pull} started since"
            )
        case _:
            return None
    more = admit(view, batches)
    return Reasons(f"{rule}: {f'{more} more may start' if more > 0 else 'none may start'}.")


def of_pacing(adapt: Adaptation, step: StepView) -> Reasons | None:
    """Why the cap and mu are what they are from a step on; None for a rule of the user's."""
    match adapt:
        case pacing.fixed:
            return Reasons("The cap and mu stay as they are.")
        case pacing.adaptive:
            return Reasons(
                f"Of a step the trainer waits {step.pace.starved:.0%} for groups, with which the cap grows "
                f"beyond {pacing.STARVED:.0%} where more of them would generate more, and "
                f"{step.pace.late:.0%} for stragglers, with which it shrinks faster beyond "
                f"{pacing.LATE:.0%}; they were {step.admission.cap:.1f} groups and mu {step.mu:g}."
            )
        case _:
            return None


def of_filter(keep: Filter, rewards: Sequence[float]) -> Reasons | None:
    """Why a group was trained on or dropped; None for a rule of the user's."""
    if keep == filtering.keep_all:
        return Reasons("Every group is kept.")
    if keep == filtering.has_variance:
        return Reasons(
            f"Rewards, or advantages of turns, go from {min(rewards):g} to {max(rewards):g}: "
            + (
                "they differ, so the group is kept."
                if keep(rewards)
                else "all are equal, so it teaches nothing."
            )
        )
    return None


def of_credit(credit: TurnAdvantages, view: TurnsView) -> Reasons | None:
    """How the advantages of a group's turns are computed; None for a rule of the user's."""
    if credit != outcomes.by_returns:
        return None
    return Reasons(
        f"The return of a turn is its reward and {view.discount:g} times that of the next turn. It is "
        f"compared with that of the same turn of the other episodes: trainer.baseline {view.baseline}, "
        f"trainer.advantage_scale {view.scale}."
    )


def rate_in_words(instance: InstanceView) -> str:
    """The load of an instance, and its tokens/s by the cost model."""
    rate = throughput(instance.coefficients, instance.running, instance.resident_tokens)
    return f"{instance.running} run, {instance.resident_tokens} tokens, {rate:.0f} tokens/s"


def of_migration(
    migrate: Migration, instances: Sequence[InstanceView], running: Running, settings: Settings
) -> Reasons | None:
    """Why these trajectories move, by instance that they leave; None for a rule of the user's."""
    if migrate not in migration.MIGRATIONS.values():
        return None
    if migrate == migration.none:
        return Reasons("Nothing moves but by weight updates and lost workers.")
    moves = {*migrate(instances, running, settings)}
    rates = {i.id: throughput(i.coefficients, i.running, i.resident_tokens) for i in instances}
    idle = [i for i in instances if not i.waiting]
    rule = "Nothing moves between fewer than two instances."
    if len(instances) > 1 and idle:
        low, high = min(rates[i.id] for i in idle), max(rates.values())
        rule = (
            f"From the fastest ({high:.0f} tokens/s) to the slowest ({low:.0f}) where one is over "
            f"{settings.phi_throughput:g} times the other, or where a response ends sooner elsewhere."
        )
    candidates = [
        Candidate(
            i.id, rates[i.id], any(t.id in moves for t in running.get(i.id, ())),
            rate_in_words(i) + (f", {i.waiting} wait in its engine" if i.waiting else ""),
        )
        for i in instances
    ]  # fmt: skip
    return Reasons(rule, tuple(candidates))
