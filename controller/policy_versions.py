"""Published policy versions: where each lies, who still needs it, which may be freed.

Invariants: a version is visible from its publication to its retirement and never changes between; versions
are published in order; the newest is never retired; nobody is told to pull a version that is not visible.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One visible version."""

    policy_version: int
    location: str
    digest: str
    host: str = ""  # where the location is


class PolicyVersions:
    """The versions that can be pulled now."""

    def __init__(self) -> None:
        self._visible: dict[int, Published] = {}
        self._newest: Published | None = None

    @property
    def newest(self) -> Published | None:
        """The version that instances should move to; None before the first publication."""
        return self._newest

    def get(self, policy_version: int) -> Published | None:
        """A version that can be pulled; None if it is not, or not any more."""
        return self._visible.get(policy_version)

    def publish(self, version: Published) -> bool:
        """Make a version visible; False if it is not newer than the newest (a repeated or late word)."""
        newest = self.newest
        if newest is not None and version.policy_version <= newest.policy_version:
            return False
        self._visible[version.policy_version] = self._newest = version
        return True

    def forget(self) -> None:
        """What was visible may not have outlived its host: the trainer says again what is there."""
        self._visible, self._newest = {}, None

    def retire(self, needed: set[int]) -> list[int]:
        """Take out every version but the newest and those that somebody needs; returns them, oldest first."""
        if not self._visible:
            return []
        newest = max(self._visible)
        retired = sorted(v for v in self._visible if v != newest and v not in needed)
        for version in retired:
            del self._visible[version]
        return retired

    @property
    def count(self) -> int:
        """Versions that can be pulled."""
        return len(self._visible)

    @property
    def visible(self) -> tuple[int, ...]:
        """All versions that can be pulled, oldest first."""
        return tuple(sorted(self._visible))
