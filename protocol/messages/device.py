"""How one device goes from the rollout side to the trainer and back (`placement: colocated`).

Invariant: who is told `Release` answers `Released` once nothing of it is left on the device, and uses it
again only when told: a trainer by `Take`, a rollout worker by its next `Pull`.
"""

from typing import ClassVar

from protocol.messages.pieces import ControllerMessage, Count, Party, Seconds, WorkerMessage
from protocol.messages.record import record


@record
class Release(ControllerMessage):
    """Leave the device to the other side.

    A rollout worker, which runs nothing any more, drops weights and KV cache. A trainer moves weights and
    optimizer state elsewhere.
    """

    tag: ClassVar[int] = 54
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")


@record
class Take(ControllerMessage):
    """The device is the trainer's: it loads its model, or takes up again what it has moved elsewhere."""

    tag: ClassVar[int] = 55
    heard_by: ClassVar[tuple[Party, ...]] = ("trainer",)


@record
class Released(WorkerMessage):
    """Nothing of this worker is left on the device, but for `left_bytes`."""

    tag: ClassVar[int] = 28
    said_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")
    peak_bytes: Count  # of tensors, the most since it has had the device
    left_bytes: Count
    release_s: Seconds  # that letting go took
