"""Published policy versions: where each lies, who still needs it, which may be freed.

Invariants: a version is visible from its publication to its retirement and never changes between; versions
are published in order, but one that is held may be shown again; the newest is never retired; nobody is told
to pull a version that is not visible, or that was lost with its trainer and is not made again yet.
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
        self._lost: int | None = None
        self._pulled: dict[int, None] = {}  # visible versions that somebody has had whole
        self.passed = -1
        """The trainer that is there shows none up to this one any more, unless it is visible."""

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
        self._lost = None
        return True

    def pulled(self, policy_version: int) -> None:
        """An instance has this version, so it is what was published."""
        if policy_version in self._visible:
            self._pulled[policy_version] = None

    def was_pulled(self, policy_version: int) -> bool:
        """Whether an instance has had it."""
        return policy_version in self._pulled

    def lose(self, policy_version: int) -> None:
        """The newest version is not where it was, and will be published again."""
        assert self._newest is not None and policy_version == self._newest.policy_version  # noqa: PT018
        self._lost = policy_version

    def is_lost(self, policy_version: int) -> bool:
        """Whether it is no use to pull this version now."""
        return policy_version == self._lost

    def renew(self, version: Published) -> bool:
        """A visible version was published again, maybe elsewhere; False if it is not visible."""
        if version.policy_version not in self._visible:
            return False
        if self._visible[version.policy_version] != version:
            self._pulled.pop(version.policy_version, None)
        self._visible[version.policy_version] = version
        if self._newest is not None and version.policy_version == self._newest.policy_version:
            self._newest, self._lost = version, None
        return True

    def show_again(self, version: Published) -> None:
        """A version that was forgotten is there again, although there are newer ones."""
        self._visible[version.policy_version] = version

    def forget(self) -> None:
        """What was visible may not have outlived its host: the trainer says again what is there."""
        self._visible, self._newest, self._lost, self._pulled, self.passed = {}, None, None, {}, -1

    def retire(self, needed: set[int]) -> list[int]:
        """Take out every version but the newest and those that somebody needs; returns them, oldest first."""
        if not self._visible:
            return []
        newest = max(self._visible)
        retired = sorted(v for v in self._visible if v != newest and v not in needed)
        for version in retired:
            del self._visible[version]
            self._pulled.pop(version, None)
        return retired

    @property
    def count(self) -> int:
        """Versions that can be pulled."""
        return len(self._visible)

    @property
    def visible(self) -> tuple[int, ...]:
        """All versions that can be pulled, oldest first."""
        return tuple(sorted(self._visible))
