"""Instances as strategies see them; the views of all that can take work are kept from step to step.

Invariants: an instance has a view exactly while it is attached and can take work, as of the last `refresh`;
the view is remade only if the instance has changed. Its place among routing's candidates is computed when
routing next looks, with the settings of the last `refresh` that changed its view, as most events bring no
work to place.
"""

from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.candidates import Candidates
from strategies.views import InstanceView, Settings


def kv_tokens(instance: Instance) -> int:
    """Tokens that its KV cache is believed to hold, less what preemptions have taught to leave free."""
    return int(instance.kv_tokens * instance.kv_share) if instance.running else instance.kv_tokens


def instance_view(state: RunState, instance: Instance) -> InstanceView:
    """The view of an instance for strategies."""
    return InstanceView(
        instance.id,
        instance.next_version,
        len(instance.running),
        instance.resident_tokens,
        instance.capacity,
        kv_tokens(instance),
        instance.expected_tokens,
        instance.fit.coefficients if instance.fit else state.coefficients,
        False,
        instance.urgent,
        instance.status.waiting if instance.status else 0,
    )


def takes_work(state: RunState, instance: Instance) -> bool:
    """Whether an instance takes work now; without partial rollout an outdated one first runs empty."""
    if not instance.is_routable:
        return False
    staleness = state.config.staleness
    if staleness.partial_rollout or staleness.keep_kv:
        return True
    newest = state.versions.newest
    return newest is None or instance.next_version == newest.policy_version


class InstanceViews:
    """Views of all instances that take work, by number, and routing's candidates."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.shown: dict[int, InstanceView] = {}
        self._candidates = Candidates()
        self._moved: dict[int, Settings] = {}  # changed instances, with the settings to place them by

    def refresh(self) -> list[int]:
        """Bring the views of changed instances up to date; returns their numbers."""
        registry = self.state.registry
        changed: list[int] = []
        for peer in registry.grown | registry.changed if registry.grown else registry.changed:
            instance = registry.workers.get(peer)
            if not isinstance(instance, Instance):
                continue  # it was removed meanwhile
            if peer in registry.changed:
                changed.append(instance.id)
            if takes_work(self.state, instance):
                self.shown[instance.id] = instance_view(self.state, instance)
                self._moved[instance.id] = self.state.strategy_settings
            else:
                self.forget(instance)
        registry.changed.clear()
        registry.grown.clear()
        return changed

    @property
    def candidates(self) -> Candidates:
        """The instances of `shown` in the order of routing."""
        if self._moved:
            order, put = self.state.strategies.route.order, self._candidates.put
            for number, settings in self._moved.items():
                view = self.shown[number]
                liking = order(view, settings) if order else 0
                put(number, view.policy_version, liking, is_full=view.running >= view.capacity)
            self._moved.clear()
        return self._candidates

    def forget(self, instance: Instance) -> None:
        """Remove an instance that is gone, or takes no work now."""
        self._candidates.drop(instance.id)
        self._moved.pop(instance.id, None)
        self.shown.pop(instance.id, None)

    def settled(self) -> list[InstanceView]:
        """Views of all instances that take work and are not pulling, as of the last refresh."""
        instance = self.state.registry.instance
        return [view for number, view in self.shown.items() if instance(number).pulling is None]
