"""One ordered, acknowledged conversation with a peer, as pure state: go-back-N over unreliable datagrams.

Invariants: what `receive` lets through is exactly what the other side sent, once each and in order, whatever
was duplicated, reordered or lost on the way; a message is kept until the peer has acknowledged it. Sequence 0
is outside the order: it carries only an acknowledgement (Beat, Relinked).
"""

from collections import deque

from protocol.errors import LocalError
from protocol.messages import Beat, Message, Relinked
from protocol.wire.codec import Packet


class Session:
    """State of one side of a conversation. The caller owns the socket and the clock."""

    def __init__(self, *, max_unacked_bytes: int = 1 << 30) -> None:
        self._next = 1
        self._received = 0
        self._unacked: deque[Packet] = deque()
        self._unacked_bytes = 0
        self._max_unacked_bytes = max_unacked_bytes

    @property
    def unacked(self) -> int:
        """Messages sent that the peer has not acknowledged."""
        return len(self._unacked)

    @property
    def received(self) -> int:
        """Highest sequence received in order: the acknowledgement that the next packet carries."""
        return self._received

    def send(self, message: Message, frames: tuple[bytes, ...] = ()) -> Packet:
        """The packet to put on the wire now. Raises: LocalError if too much is unacknowledged."""
        if isinstance(message, Beat | Relinked):
            return Packet(0, self._received, message, frames)
        packet = Packet(self._next, self._received, message, frames)
        if self._unacked_bytes >= self._max_unacked_bytes:  # the size of the new message does not matter
            raise LocalError(
                f"{self._unacked_bytes} bytes wait for an acknowledgement; expected less than "
                f"{self._max_unacked_bytes}. The peer has stopped reading: treat it as lost."
            )
        self._unacked_bytes += sum(map(len, frames))
        self._next += 1
        self._unacked.append(packet)
        return packet

    def receive(self, packet: Packet) -> bool:
        """Returns whether the message is new and next in order, so that the caller must act on it.

        The acknowledgement in the packet is taken in any case.
        """
        while self._unacked and self._unacked[0].sequence <= packet.ack:
            self._unacked_bytes -= sum(map(len, self._unacked.popleft().frames))
        if packet.sequence == 0:
            return True
        if packet.sequence != self._received + 1:
            return False
        self._received = packet.sequence
        return True

    def resend(self) -> list[Packet]:
        """All packets that are unacknowledged, with the newest acknowledgement.

        For a link that was cut or stays silent.
        """
        return [packet._replace(ack=self._received) for packet in self._unacked]
