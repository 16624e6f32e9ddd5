"""Whether work that could run is left lying: judged by brute force, not by the core's own rules.

Work could run if an instance that is there and not pulling could take it: one where nothing runs, at the
version that it has or after a pull that could be told now; and where routing takes whatever has room, also
one with half of its KV and a row free. Whether a group may start, or a sibling under an older version, is
decided by counting the groups due by each batch. What lies for LIMIT_S without a pause is a stall.
"""

from collections.abc import Iterator

from controller.core.core import Core
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.views.admission import admission_view
from tests.simulation.oracle.world import PLUGINS, World

LIMIT_S = 60.0
LOOK_S = 1.0
UNGATED = ("least_requests", "round_robin", f"{PLUGINS}:route_to_any")


class Stall(AssertionError):
    """Work lies that could run."""


class Stalls:
    """Looks now and then."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._since: dict[object, float] = {}
        self._next = 0.0
        rules = world.config.staleness
        self._is_ungated = rules.mu == 0 or rules.routing in UNGATED
        self._may_run_on = rules.partial_rollout or rules.keep_kv

    def look(self, core: Core, now: float) -> None:
        """Raises: Stall."""
        if now < self._next or core.state.ending is not None:
            return
        self._next = now + LOOK_S
        found = dict(self._could_run(core))
        self._since = {key: self._since.get(key, now) for key in found}
        for key, since in self._since.items():
            if now - since > LIMIT_S:
                raise Stall(f"{key} could run on {found[key]} since {now - since:.0f} s, and is not placed")

    def _could_run(self, core: Core) -> Iterator[tuple[object, str]]:
        state = core.state
        there = [i for i in state.registry.instances() if i.ready and i.pulling is None]
        for group in list(state.groups.values()):
            if group.is_evaluation or group.state != "generating":
                continue
            for member in group.members:
                if member.state == "queued":
                    name = next((i.name for i in there if self._could_take(core, i, group, member)), None)
                    if name is not None:
                        yield (*member.id, member.attempt), name
        if state.fresh and state.strategies.admit(admission_view(state), self._batches) > 0:
            name = next((i.name for i in there if self._could_start(core, i)), None)
            if name is not None:
                yield ("a fresh group", state.started), name

    @property
    def _batches(self) -> float | str:
        return self.world.config.staleness.in_flight_batches

    def _could_take(self, core: Core, instance: Instance, group: Group, member: Trajectory) -> bool:
        largest = max(i.kv_tokens for i in core.state.registry.instances() if i.ready)
        fits = member.resident_tokens <= instance.kv_tokens or instance.kv_tokens == largest
        if not instance.running:
            versions = self._versions(core, instance)
            return fits and any(self._may_run(core, group, member, version) for version in versions)
        if not self._is_ungated or not self._is_current(core, instance):
            return False
        has_room = instance.resident_tokens + member.resident_tokens <= instance.kv_tokens / 2
        has_room &= len(instance.running) < instance.capacity
        return has_room and self._may_run(core, group, member, instance.policy_version)

    def _could_start(self, core: Core, instance: Instance) -> bool:
        if instance.running:
            return False
        return any(self._has_place(core, version, None) for version in self._versions(core, instance))

    def _versions(self, core: Core, instance: Instance) -> list[int]:
        """Under which an idle instance could generate at once, or after a pull."""
        newest = core.state.versions.newest
        if newest is None:
            return []
        found = [instance.policy_version] if self._is_current(core, instance) else []
        trainer = core.state.registry.trainer()
        is_near = instance.host == newest.host
        is_reachable = is_near or (trainer is not None and bool(trainer.endpoint and instance.endpoint))
        is_there = is_reachable and not core.state.versions.is_lost(newest.policy_version)
        if is_there and not core.evaluation.holds(instance):
            found.append(newest.policy_version)
        return found

    def _is_current(self, core: Core, instance: Instance) -> bool:
        newest = core.state.versions.newest
        if instance.policy_version < 0 or newest is None:
            return False
        return self._may_run_on or instance.policy_version == newest.policy_version

    def _may_run(self, core: Core, group: Group, member: Trajectory, version: int) -> bool:
        if member.segments:
            return version >= member.segments[-1].policy_version
        assert group.policy_version is not None
        return version >= group.policy_version or self._has_place(core, version, group)

    def _has_place(self, core: Core, version: int, started: Group | None) -> bool:
        """Whether a group of this version, or one that has started and includes it, may be in the system."""
        rules, ledger = self.world.config.staleness, core.state.ledger
        bound, now = rules.max_staleness, ledger.train_version
        if rules.ledger != "deadlines":
            return rules.ledger != "floor" or version + bound >= now
        if version + bound < now:
            return False
        due = [version + bound]
        for group in core.state.groups.values():
            in_system = group.state in ("generating", "scoring", "occupied") and not group.is_evaluation
            if in_system and group is not started:
                assert group.policy_version is not None
                is_settled = self.world.config.trainer.streaming and group.state == "occupied"
                due.append(now if is_settled else group.policy_version + bound)
        places = ledger.batch_groups + ledger.spare_groups
        return all(
            sum(d <= batch for d in due) <= places * (batch - now + 1)
            for batch in range(now, now + bound + 1)
        )
