"""The most attractive instances of each policy version, without looking at all of them.

Invariants: an instance is under at most one version; `best` gives the smallest keys first, ties by number; an
entry that is no longer true is skipped when it surfaces, so that a change costs the logarithm of the number
of instances; those that were looked at last stand sorted before the others, so that looking again at the same
ones moves nothing.
"""

import heapq
from bisect import insort
from collections.abc import Callable
from typing import Any

Key = Any  # the strategy's own number or tuple, which is only compared
Entry = tuple[Key, int]  # with the number of the instance
MOST_SORTED = 64  # of a version: what stands behind goes back to the others


class _Line:
    """Entries of one version: a few sorted ones, and a heap of which none comes before the last of them."""

    __slots__ = ("heap", "sorted")

    def __init__(self) -> None:
        self.sorted: list[Entry] = []
        self.heap: list[Entry] = []

    def add(self, entry: Entry) -> None:
        if self.sorted and entry < self.sorted[-1]:
            insort(self.sorted, entry)
            self.trim()
        else:
            heapq.heappush(self.heap, entry)

    def trim(self) -> None:
        """Give back what is too much to be kept sorted."""
        while len(self.sorted) > MOST_SORTED:
            heapq.heappush(self.heap, self.sorted.pop())


class Candidates:
    """Instances by policy version, each with the key that routing orders it by."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._entries: dict[int, tuple[int, Key]] = {}  # number -> (version, key) that is true now
        self._counts: dict[int, int] = {}  # version -> instances under it, newest first

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, number: int, policy_version: int, key: Key) -> None:
        """Enter an instance, or change its version or key."""
        entry, before = (policy_version, key), self._entries.get(number)
        if before == entry:
            return
        if before is None or before[0] != policy_version:
            self.drop(number)
            self._enter(policy_version)
        self._entries[number] = entry
        line = self._lines[policy_version]
        line.add((key, number))
        if len(line.sorted) + len(line.heap) > 4 * len(self._entries) + 64:
            line.sorted, line.heap = (
                [],
                sorted((key, n) for n, (version, key) in self._entries.items() if version == policy_version),
            )

    def drop(self, number: int) -> None:
        """Take an instance out; harmless if it is not here."""
        before = self._entries.pop(number, None)
        if before is not None:
            self._counts[before[0]] -= 1
            if not self._counts[before[0]]:
                del self._counts[before[0]], self._lines[before[0]]

    def versions(self) -> list[int]:
        """Policy versions that some instance is under, newest first."""
        return list(self._counts)

    def _enter(self, policy_version: int) -> None:
        self._counts[policy_version] = self._counts.get(policy_version, 0) + 1
        if policy_version not in self._lines:
            self._lines[policy_version] = _Line()
            self._counts = dict(sorted(self._counts.items(), reverse=True))

    def best(
        self,
        policy_version: int,
        count: int,
        suits: Callable[[int], bool] = lambda _: True,
        *,
        looks: int = 1 << 30,
    ) -> list[int]:
        """Up to `count` instances under this version that suit, best first, of the `looks` best."""
        return self.look(policy_version, count, suits, looks=looks)[0]

    def look(
        self,
        policy_version: int,
        count: int,
        suits: Callable[[int], bool],
        *,
        looks: int,
        is_useless: Callable[[Key], bool] = lambda _: False,
    ) -> tuple[list[int], list[int]]:
        """The same, and all that were looked at for it.

        `is_useless`: no instance with this key, or with one behind it, suits.
        """
        seen: list[int] = []
        found: list[int] = []
        line = self._lines.get(policy_version)
        if line is None:
            return found, seen
        entries, ordered, heap = self._entries, line.sorted, line.heap
        place, last = 0, None
        while len(found) < count and place < looks:
            if place == len(ordered):
                if not heap:
                    break
                ordered.append(heapq.heappop(heap))
            entry = ordered[place]
            key, number = entry
            if entry == last or entries.get(number) != (policy_version, key):
                del ordered[place]  # entered twice, or true no more
                continue
            if is_useless(key):
                break
            place, last = place + 1, entry
            seen.append(number)
            if suits(number):
                found.append(number)
        line.trim()
        return found, seen
