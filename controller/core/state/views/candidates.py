"""The best instances of each policy version for routing, without looking at all of them.

Invariants: an instance is under at most one version; instances with a free row are sorted by key, then
number, and those without one are only counted; a change costs the logarithm of the number of instances, and
one move in memory.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice
from typing import Any

Key = Any  # the strategy's own number or tuple, which is only compared
Entry = tuple[Key, int]  # key and number of an instance


class Candidates:
    """Instances by policy version, each with the key that routing orders it by."""

    def __init__(self) -> None:
        self._lines: dict[int, list[Entry]] = {}  # version -> instances with a free row, sorted
        self._entries: dict[int, tuple[int, Entry | None]] = {}  # number -> version, and its place in line
        self._counts: dict[int, int] = {}  # version -> instances under it, newest first

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, number: int, policy_version: int, key: Key, *, is_full: bool = False) -> None:
        """Enter an instance, or change its version, its key, or whether it has a free row."""
        entry, before = None if is_full else (key, number), self._entries.get(number)
        if before is None or before[0] != policy_version:
            self.drop(number)
            self._enter(policy_version)
            before = None
        line = self._lines[policy_version]
        if before is not None and before[1] is not None:
            if before[1] == entry:
                return
            del line[bisect_left(line, before[1])]
        self._entries[number] = policy_version, entry
        if entry is not None:
            insort(line, entry)

    def drop(self, number: int) -> None:
        """Take an instance out; harmless if it is not here."""
        found = self._entries.pop(number, None)
        if found is None:
            return
        version, entry = found
        if entry is not None:
            line = self._lines[version]
            del line[bisect_left(line, entry)]
        self._counts[version] -= 1
        if not self._counts[version]:
            del self._counts[version], self._lines[version]

    def versions(self) -> list[int]:
        """Policy versions of the instances here, newest first."""
        return list(self._counts)

    def _enter(self, policy_version: int) -> None:
        self._counts[policy_version] = self._counts.get(policy_version, 0) + 1
        if policy_version not in self._lines:
            self._lines[policy_version] = []
            self._counts = dict(sorted(self._counts.items(), reverse=True))

    def best(
        self,
        policy_version: int,
        count: int,
        suits: Callable[[int], bool] = lambda _: True,
        *,
        looks: int = 1 << 30,
    ) -> list[int]:
        """Up to `count` suitable instances of this version, best first, among the `looks` best."""
        return self.look(policy_version, count, suits, looks=looks)[0]

    def look(
        self, policy_version: int, count: int, suits: Callable[[int], bool], *, looks: int
    ) -> tuple[list[int], list[int]]:
        """The same, and all instances that were looked at."""
        seen: list[int] = []
        found: list[int] = []
        for _, number in islice(self._lines.get(policy_version, ()), looks):
            seen.append(number)
            if suits(number):
                found.append(number)
                if len(found) == count:
                    break
        return found, seen
