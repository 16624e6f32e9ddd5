"""The file in which a local rollout worker leaves its unfinished work when the controller is killed.

Invariants: one process at a time holds the file of a name, from its attach to its end, so a successor reads
all that its predecessor had to report; a file that is cut off or of another release is logged and not used.
"""

import fcntl
import logging
from pathlib import Path

from protocol.errors import RemoteError
from protocol.files import for_owner_only
from protocol.messages import Generated, Keep
from workers.link.link import Link
from workers.rollout.unacknowledged import Unacknowledged

logger = logging.getLogger(__name__)


class Handover:
    """The file of one local worker."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b", opener=for_owner_only)  # noqa: SIM115 - held until the process ends

    def read(self) -> tuple[Unacknowledged, int] | None:
        """Wait until the predecessor has ended, and read the file.

        Returns its unfinished work and the policy version of its engine, None if it left none. Raises:
        OSError.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("The worker before this one has not ended yet; waiting for it.")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.seek(0)
        if not (data := self._file.read()):
            return None
        try:
            return Unacknowledged.from_bytes(data)
        except RemoteError as error:
            logger.warning(
                "What the worker before this one left in %s is not used: %s", self._file.name, error
            )
            return None

    def write(self, unacknowledged: Unacknowledged, policy_version: int) -> None:
        """Write the unfinished work for the successor, in place of the file's content. Raises: OSError."""
        self._file.truncate(0)
        self._file.write(unacknowledged.to_bytes(policy_version))
        self._file.flush()

    def clear(self) -> None:
        """Empty the file: a controller has received its content. Raises: OSError."""
        self._file.truncate(0)


async def hand_over(link: Link, unacknowledged: Unacknowledged, policy_version: int) -> None:
    """Report the part of a predecessor's unfinished work that the controller still wants.

    Raises: LinkClosed, RemoteError.
    """
    link.send(unacknowledged.holding(policy_version, {}))
    message, _ = await link.receive()
    if not isinstance(message, Keep):
        raise RemoteError(f"The controller answered Holding with {type(message).__name__}; expected Keep.")
    words = unacknowledged.release(message)
    for word, frames in words:
        link.send(word, *frames)
    tokens = sum(sum(word.counts) for word, _ in words if isinstance(word, Generated))
    logger.info("Handed over %d tokens of %d responses of the worker before.", tokens, len(message.attempts))
