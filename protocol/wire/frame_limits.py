"""Limits, by sender: how large a frame may be, and how many frames of a message are read.

They do not bound a whole message: libzmq receives all of it before the first frame can be read.
"""

from protocol.errors import LocalError
from protocol.messages import Message
from protocol.wire.sockets import FrameLimits, Frames

MAX_FRAME_FROM_WORKER = 64 << 20  # a report of 256 responses of 32k tokens is 32 MiB
MAX_FRAME_TO_WORKER = 2 << 30  # the tokens of a whole batch travel to the trainer as one frame
MAX_HEADER_TO_WORKER = 1 << 30  # of a batch: 17 bytes for each turn of each of its episodes
FROM_WORKER_LIMITS = FrameLimits(MAX_FRAME_FROM_WORKER, 16_384)
TO_WORKER_LIMITS = FrameLimits(MAX_FRAME_TO_WORKER, 1 << 20)
"""A batch has a frame for each trajectory that was sampled from a cut distribution."""


def check_sizes(message: Message, frames: Frames, limit: int) -> None:
    """Check frames before they are sent. Raises: LocalError if the other side would refuse one of them."""
    for frame in frames:
        if len(frame) > limit:
            raise LocalError(
                f"A frame of {type(message).__name__} has {len(frame)} bytes; the other side accepts "
                f"{limit}. Send less at a time."
            )
