"""Messages that hand one device from the rollout side to the trainer and back (`placement: colocated`).

Invariant: a worker answers `Release` with `Released` once nothing of it is left on the device, and uses the
device again only when told: a trainer by `Take`, a rollout worker by its next `Pull`.
"""

from typing import ClassVar

from protocol.messages.pieces import ControllerMessage, Count, Party, Seconds, WorkerMessage
from protocol.messages.record import record


@record
class Release(ControllerMessage):
    """Leave the device to the other side.

    A rollout worker, in which nothing runs by then, drops weights and KV cache. A trainer moves weights and
    optimizer state elsewhere.
    """

    tag: ClassVar[int] = 54
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")


@record
class Take(ControllerMessage):
    """Give the device to the trainer: it loads its model, or moves back what it moved elsewhere."""

    tag: ClassVar[int] = 55
    heard_by: ClassVar[tuple[Party, ...]] = ("trainer",)


@record
class Released(WorkerMessage):
    """Nothing of this worker is left on the device, but for `left_bytes`."""

    tag: ClassVar[int] = 28
    said_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")
    peak_bytes: Count  # peak of tensor memory since it got the device
    left_bytes: Count
    release_s: Seconds  # time that leaving the device took
