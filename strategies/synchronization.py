"""Which instances to bring to the newest version now: `choose(instances, settings) -> indices`."""

from collections.abc import Callable, Sequence

from strategies.views import Settings, SyncView

Synchronization = Callable[[Sequence[SyncView], Settings], list[int]]


def greedy(instances: Sequence[SyncView], settings: Settings) -> list[int]:
    """All of them, as soon as a version is published (the default of PSRL, the released StaleFlow code)."""
    del settings
    return [instance.index for instance in instances]


SYNCHRONIZATIONS: dict[str, Synchronization] = {"greedy": greedy}
