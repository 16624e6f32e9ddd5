"""Published policy versions: where each lies, and which may be pulled or freed.

Invariants: a version is visible from its publication to its retirement and does not change in between;
versions are published in order, but one held for an evaluation may be shown again; the newest is never
retired; no instance is told to pull a version that is not visible, or was lost with its trainer and is not
published again yet. Versions move as the table in `transitions` says.
"""

from collections import deque
from dataclasses import dataclass

from controller.core.state.transitions import VersionEvent, VersionState, next_of_version
from protocol.ids import PeerId

UNSURE_FREED = 16  # last versions to be freed, which a trainer that died may not have freed


@dataclass(frozen=True, slots=True)
class Published:
    """One visible version."""

    policy_version: int
    location: str
    digest: str
    host: str = ""  # where the location is


class PullRests:
    """Instances whose pull of a version has failed, and that wait some time before they try again."""

    def __init__(self) -> None:
        self._until: dict[PeerId, tuple[int, float]] = {}

    def add(self, peer: PeerId, policy_version: int, until: float) -> None:
        """Let an instance rest from pulling this version."""
        self._until[peer] = policy_version, until

    def has(self, peer: PeerId, policy_version: int) -> bool:
        """Whether an instance rests from pulling this version."""
        return peer in self._until and self._until[peer][0] == policy_version

    def next(self) -> float | None:
        """End of the first rest; None if there is none."""
        if not self._until:  # nearly always
            return None
        return min(until for _, until in self._until.values())

    def end(self, now: float) -> bool:
        """Remove rests that are over; returns whether there were any."""
        if not self._until:
            return False
        over = [peer for peer, (_, until) in self._until.items() if until <= now]
        for peer in over:
            del self._until[peer]
        return bool(over)

    def end_all(self) -> None:
        """Let all resting instances pull at the next decision: the version was published again."""
        self._until = {peer: (version, 0.0) for peer, (version, _) in self._until.items()}


class PolicyVersions:
    """The versions that can be pulled now."""

    def __init__(self) -> None:
        self._visible: dict[int, Published] = {}
        self._newest: Published | None = None
        self._states: dict[int, VersionState] = {}  # of those in `_visible`
        self._pulled: dict[int, None] = {}  # visible versions that an instance has pulled
        self.rests = PullRests()
        self.freed: deque[int] = deque(maxlen=UNSURE_FREED)
        """The last versions that the trainer was told to free."""
        self.passed = -1
        """The attached trainer will publish no version up to this one, except again a visible one."""

    @property
    def newest(self) -> Published | None:
        """The version that instances should move to; None before the first publication."""
        return self._newest

    def get(self, policy_version: int) -> Published | None:
        """A visible version; None if it is not visible."""
        return self._visible.get(policy_version)

    def publish(self, version: Published) -> bool:
        """Make a version visible; False if it is not newer than the newest (a repeated or late message)."""
        newest = self.newest
        if newest is not None and version.policy_version <= newest.policy_version:
            return False
        if newest is not None and self.is_lost(newest.policy_version):
            self._move(newest.policy_version, "superseded")
        self._move(version.policy_version, "published")
        self._visible[version.policy_version] = self._newest = version
        return True

    def pulled(self, policy_version: int) -> None:
        """An instance has pulled this version, so what was published is intact."""
        if policy_version in self._visible:
            self._pulled[policy_version] = None

    def was_pulled(self, policy_version: int) -> bool:
        """Whether an instance has pulled it."""
        return policy_version in self._pulled

    def lose(self, policy_version: int) -> None:
        """The newest version was lost with its trainer, and will be published again."""
        assert self._newest is not None, "no version was published"
        assert policy_version == self._newest.policy_version
        self._move(policy_version, "lost")

    def is_lost(self, policy_version: int) -> bool:
        """Whether this version is lost, so that it cannot be pulled now."""
        return self._states.get(policy_version) == "lost"

    def has_reached(self, policy_version: int) -> bool:
        """Whether this version, or a newer one, can be pulled."""
        newest = -1 if self._newest is None else self._newest.policy_version
        return newest > policy_version or (newest == policy_version and not self.is_lost(policy_version))

    def renew(self, version: Published) -> bool:
        """A visible version was published again, maybe elsewhere; False if it is not visible."""
        if version.policy_version not in self._visible:
            return False
        self.rests.end_all()
        if self._visible[version.policy_version] != version:
            self._pulled.pop(version.policy_version, None)
        self._move(version.policy_version, "renewed")
        self._visible[version.policy_version] = version
        if self._newest is not None and version.policy_version == self._newest.policy_version:
            self._newest = version
        return True

    def show_again(self, version: Published) -> None:
        """Make a forgotten version visible again, although there are newer ones."""
        self._move(version.policy_version, "shown_again")
        self._visible[version.policy_version] = version

    def forget(self) -> None:
        """Forget all visible versions; the trainer announces again those that survived."""
        for version in self._visible:
            self._move(version, "forgotten")
        self.rests.end_all()
        self._visible, self._newest, self._pulled, self.passed = {}, None, {}, -1

    def retire(self, needed: set[int]) -> list[int]:
        """Retire all versions but the newest and those `needed`; returns them, oldest first."""
        if not self._visible:
            return []
        newest = max(self._visible)
        retired = sorted(v for v in self._visible if v != newest and v not in needed)
        for version in retired:
            self._move(version, "retired")
            del self._visible[version]
            self._pulled.pop(version, None)
        return retired

    def state(self, policy_version: int) -> VersionState:
        """The state of a version."""
        return self._states.get(policy_version, "hidden")

    def check(self) -> None:
        """Assert that visible versions have a state, and only the newest may be lost."""
        assert self._states.keys() == self._visible.keys(), f"{self._states} of {self.visible}"
        assert self._pulled.keys() <= self._visible.keys(), f"{self._pulled} of {self.visible}"
        newest = -1 if self._newest is None else self._newest.policy_version
        assert max(self._visible, default=-1) == newest, f"the newest of {self.visible} is not {newest}"
        for version, state in self._states.items():
            assert state == "visible" or (state == "lost" and version == newest), f"{version} is {state}"

    def _move(self, version: int, event: VersionEvent) -> None:
        state = next_of_version(version, self.state(version), event)
        if state == "hidden":
            del self._states[version]
        else:
            self._states[version] = state

    @property
    def count(self) -> int:
        """Versions that can be pulled."""
        return len(self._visible)

    @property
    def visible(self) -> tuple[int, ...]:
        """All versions that can be pulled, oldest first."""
        return tuple(sorted(self._visible))
