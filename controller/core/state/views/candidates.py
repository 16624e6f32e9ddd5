"""The most attractive instances of each policy version, without looking at all of them.

Invariants: an instance is under at most one version; `best` gives the smallest keys first, ties by number; an
entry that is no longer true is skipped when it surfaces, so that a change costs the logarithm of the number
of instances.
"""

import heapq
from collections.abc import Callable
from typing import Any

Key = Any  # the strategy's own number or tuple, which is only compared


class Candidates:
    """Heaps of (key, number of the instance), one per policy version."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[Key, int]]] = {}
        self._entries: dict[int, tuple[int, Key]] = {}  # number -> (version, key) that is true now

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, number: int, policy_version: int, key: Key) -> None:
        """Enter an instance, or change its version or key."""
        if self._entries.get(number) == (policy_version, key):
            return
        self._entries[number] = (policy_version, key)
        heap = self._heaps.setdefault(policy_version, [])
        heapq.heappush(heap, (key, number))
        if len(heap) > 4 * len(self._entries) + 64:
            self._heaps[policy_version] = sorted(
                (key, n) for n, (version, key) in self._entries.items() if version == policy_version
            )

    def drop(self, number: int) -> None:
        """Take an instance out; harmless if it is not here."""
        self._entries.pop(number, None)

    def versions(self) -> list[int]:
        """Policy versions that some instance is under, newest first."""
        for version in list(self._heaps):
            if self._first(version) is None:
                del self._heaps[version]
        return sorted(self._heaps, reverse=True)

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
        seen: list[tuple[Key, int]] = []
        found: list[int] = []
        heap, entries = self._heaps.get(policy_version, []), self._entries
        while heap and len(found) < count and len(seen) < looks:
            top = key, number = heap[0]
            is_true = entries.get(number) == (policy_version, key)
            if is_true and is_useless(key):
                break
            heapq.heappop(heap)
            if is_true and (not seen or seen[-1] != top):  # the same instance may have been entered twice
                seen.append(top)
                if suits(number):
                    found.append(number)
        for entry in seen:
            heapq.heappush(heap, entry)
        return found, [number for _, number in seen]

    def _first(self, policy_version: int) -> tuple[Key, int] | None:
        heap = self._heaps.get(policy_version, [])
        while heap:
            key, number = heap[0]
            if self._entries.get(number) == (policy_version, key):
                return heap[0]
            heapq.heappop(heap)
        return None
