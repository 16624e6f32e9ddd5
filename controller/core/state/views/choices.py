"""Chooses the instance for a trajectory: shows a few that may run it to the routing strategy.

Invariants: a trajectory runs only at or above the version of its newest token, and below the version that its
group was admitted under only if the ledger allows it; a decision looks at a few instances, however many there
are. Results are reused from one trajectory to the next, as siblings are alike and only one instance changes
in between; they are forgotten before the next event, and change no decision.
Source: StaleFlow (arXiv 2601.12784), routing over a queue by trajectory version.
"""

from collections.abc import Callable
from heapq import nsmallest
from typing import NamedTuple

from controller.core.state.agents.homes import NOWHERE, home
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.instances import InstanceViews
from strategies.routing import Weigh, has_room
from strategies.views import InstanceView, Settings, WorkView

SHORTLISTED = 4  # instances of each version that are shown to routing
LOOKED_AT = 32  # instances of each version, best first, that are checked for room
SIBLINGS = 2  # instances with a member of the same group that are shown, too


class Head(NamedTuple):
    """A trajectory that may be placed next."""

    trajectory: Trajectory
    is_fresh: bool  # whether it opens a group
    policy_version: int  # newest version that it may be placed under; at newer ones other work is due first


class Choices:
    """Finds instances for trajectories."""

    def __init__(self, state: RunState, views: InstanceViews) -> None:
        self.state, self.views = state, views
        self.versions: list[int] = []
        """Versions of the instances, newest first; set by the caller."""
        self.forget()

    def forget(self) -> None:
        """Forget remembered results: another event has come."""
        self._judged: dict[int, tuple[InstanceView, bool, float | None]] = {}
        """By instance, for the current work: the view that was judged, whether it had room, and its worth."""
        self._judged_for: tuple[object, ...] = ()  # that work, without its group
        self._judged_by: Settings | None = None
        self._sibling: WorkView | None = None  # last work without a token, with its group's deadline
        self._sibling_due = -1

    def choose(self, head: Head, only: list[int] | None) -> Instance | None:
        """The instance for a trajectory; `only`: the only instances that may have become able to take it."""
        group = self.state.groups[head.trajectory.id.group]
        work = self._work(group, head.trajectory, head.is_fresh)
        route = self.state.strategies.route
        if work.resident_tokens > self.state.registry.largest_kv or route.weigh is None:
            number = self._asked(head, group, work, only)
        else:
            number = self._weighed(head, group, work, only, route.weigh)
        return None if number is None else self.state.registry.instance(number)

    # -- two ways to the same answer --------------------------------------------------------------------

    def _weighed(
        self, head: Head, group: Group, work: WorkView, only: list[int] | None, weigh: Weigh
    ) -> int | None:
        """Choose by worth; for a sibling of the last trajectory, only changed instances are judged again."""
        settings = self.state.strategy_settings
        kind = work[1:]
        if kind != self._judged_for or settings is not self._judged_by:
            self._judged, self._judged_for, self._judged_by = {}, kind, settings
        judged, shown, worth_on = self._judged, self.views.shown, weigh(work, settings)

        def judge(view: InstanceView) -> tuple[InstanceView, bool, float | None]:
            is_able = has_room(work, view)
            found = judged[view.id] = view, is_able, worth_on(view) if is_able else None
            return found

        def has_place(number: int) -> bool:
            view, known = shown[number], judged.get(number)
            return (known if known is not None and known[0] is view else judge(view))[1]

        versions = self._open_versions(head, group)
        if only is None:
            only = self._candidates(versions, work, self._siblings(group, SIBLINGS), suits=has_place)
        most, best, is_away_able = None, list[int](), False
        moved_from = head.trajectory.moved_from
        away = -1 if moved_from is None else self._number(moved_from)
        for number in only:
            view, known = shown.get(number), judged.get(number)
            if view is None or view.policy_version not in versions:
                continue
            value = (known if known is not None and known[0] is view else judge(view))[2]
            if value is None:
                continue
            if number == away:
                is_away_able = True
            elif most is None or value > most:
                most, best = value, [number]
            elif value == most:
                best.append(number)
        if not best:
            return away if is_away_able else None
        return best[0] if len(best) == 1 else self._first_of_equals(group, best)

    def _first_of_equals(self, group: Group, numbers: list[int]) -> int:
        """An instance that holds a sibling, if one does; the first of them."""
        peers, instance = {member.peer for member in group.members}, self.state.registry.instance
        return min([number for number in numbers if instance(number).peer in peers] or numbers)

    def _asked(self, head: Head, group: Group, work: WorkView, only: list[int] | None) -> int | None:
        """Choose by showing candidates to the strategy."""
        siblings, versions = self._siblings(group, len(group.members)), self._open_versions(head, group)
        is_misfit, shown = work.resident_tokens > self.state.registry.largest_kv, self.views.shown
        if only is None and is_misfit:
            only = list(shown)
        elif only is None:
            few = siblings[:SIBLINGS]
            only = self._candidates(versions, work, few, suits=lambda n: has_room(work, shown[n]))
        offered: list[InstanceView] = []
        for view in [shown[number] for number in only if number in shown]:
            if view.policy_version not in versions:
                continue
            view = self._alone(view, work) if is_misfit else view
            offered.append(view._replace(has_sibling=True) if view.id in siblings else view)
        if not offered:
            return None
        away = self._number(head.trajectory.moved_from)
        elsewhere = [view for view in offered if view.id != away] if away >= 0 else offered
        settings = self.state.strategy_settings
        choose = self.state.strategies.route.choose
        # lists of its own: one of the user's may change them
        index = choose(work, [*elsewhere], settings) if elsewhere else None
        if index is None and len(elsewhere) < len(offered):
            index = choose(work, [*offered], settings)
        assert index is None or any(view.id == index for view in offered), (
            f"routing chose {index}, which may not run it"
        )
        return index

    # -- inside -----------------------------------------------------------------------------------------

    def _open_versions(self, head: Head, group: Group) -> list[int]:
        """Versions of instances, newest first, under which a trajectory may run.

        No token may be older than the one before it, and the ledger needs room for a start.
        """
        ledger, newest = self.state.ledger, head.policy_version
        there = [version for version in self.versions if version <= newest]
        if head.is_fresh:
            return [version for version in there if ledger.can_reserve(version)]
        begun_at = head.trajectory.newest_version
        if begun_at >= 0:
            return [version for version in there if version >= begun_at]
        return [version for version in there if ledger.can_lower(group.id, version)]

    def _alone(self, view: InstanceView, work: WorkView) -> InstanceView:
        """No KV cache is large enough: the largest instance takes the work when idle; its engine decides."""
        is_largest = self.state.registry.instance(view.id).kv_tokens >= self.state.registry.largest_kv
        return view if view.running or not is_largest else view._replace(kv_tokens=work.resident_tokens)

    def _candidates(
        self, versions: list[int], work: WorkView, siblings: list[int], *, suits: Callable[[int], bool]
    ) -> list[int]:
        """Candidates of each version: those with room that routing likes best, or else the freest.

        `suits`: whether an instance has room for the work.
        """
        views = self.views
        if self.state.strategies.route.order is None:
            return sorted(views.shown)
        found, candidates = list[int](), views.candidates
        for version in versions:
            best, seen = candidates.look(version, SHORTLISTED, suits, looks=LOOKED_AT)
            if len(best) < SHORTLISTED and len(views.shown) > LOOKED_AT:
                best += self._freest(version, None if len(seen) == LOOKED_AT else seen)
            found += best
        home = [work.home] if work.home >= 0 else []
        return list(dict.fromkeys([*found, *siblings, *home]))

    def _freest(self, policy_version: int, seen: list[int] | None) -> list[int]:
        """The instances of a version with the most free KV, if hardly any of many has room.

        `seen`: all instances of the version with a free row, if known.
        """
        every = self.views.shown
        shown = every.values() if seen is None else [every[number] for number in seen]
        there = [v for v in shown if v.policy_version == policy_version and v.running < v.capacity]
        freest = nsmallest(
            SHORTLISTED, there, key=lambda view: (view.resident_tokens - view.kv_tokens, view.id)
        )
        return [view.id for view in freest]

    def _siblings(self, group: Group, most: int) -> list[int]:
        """Instances that hold members of a group, in the order of members, `most` at most."""
        found: dict[str, None] = {}
        for member in group.members:
            if member.peer is not None and member.peer not in found:
                found[member.peer] = None
                if len(found) == most:
                    break
        return [self._number(peer) for peer in found]

    def _number(self, peer: str | None) -> int:
        instance = self.state.registry.workers.get(peer) if peer is not None else None
        return instance.id if isinstance(instance, Instance) else -1

    def _work(self, group: Group, trajectory: Trajectory, is_fresh: bool) -> WorkView:
        state = self.state
        if is_fresh:
            expected, slack = state.strategy_settings.typical_tokens, state.ledger.max_staleness
            return WorkView(group.id, trajectory.resident_tokens, 0, True, expected, slack, *NOWHERE)
        due = state.ledger.deadline(group.id)
        known = self._sibling  # siblings without a token are alike
        if not trajectory.segments and known and known.group == group.id and due == self._sibling_due:
            trajectory.expected_tokens = known.expected_tokens - trajectory.context_tokens
            return known
        trajectory.expected_tokens = state.expected_tokens(group, trajectory)
        expected = trajectory.context_tokens + trajectory.expected_tokens
        held = home(state.registry, trajectory, keeps_kv=state.config.staleness.keep_kv)
        minimum, slack = trajectory.newest_version, due - state.ledger.train_version
        found = WorkView(group.id, trajectory.resident_tokens, minimum, False, expected, slack, *held)
        if not trajectory.segments:
            self._sibling, self._sibling_due = found, due
        return found
