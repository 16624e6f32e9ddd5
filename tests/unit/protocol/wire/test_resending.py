"""What a peer has lost is said again, and no acknowledgement leaves before what it is for may be durable."""

import zmq

from protocol.messages import Beat, Message, Ready, Retire
from protocol.wire.codec import Packet, decode
from protocol.wire.sockets import Conversation


class Peer:
    """The other end, as a socket reaches it."""

    def __init__(self) -> None:
        self.is_there = True
        self.heard: list[Packet] = []

    def transmit(self, frames: list[bytes]) -> None:
        if not self.is_there:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        self.heard.append(decode(frames))

    def said(self) -> list[tuple[Message, int]]:
        """What has come, with what it acknowledges, since this was last asked."""
        heard, self.heard = self.heard, []
        return [(packet.message, packet.ack) for packet in heard]


def test_what_a_peer_that_was_unreachable_lost_leaves_after_the_drain_with_what_was_heard_in_it() -> None:
    peer = Peer()
    conversation = Conversation(peer.transmit, resend_s=5.0)
    peer.is_there = False
    conversation.send(Retire(1), ())
    conversation.send(Retire(2), ())
    peer.is_there = True
    assert conversation.hear(Packet(1, 0, Ready(1, 0, 0), ()), now=0.0)
    conversation.send(Retire(3), ())  # in answer
    assert peer.said() == []
    conversation.flush()
    assert peer.said() == [(Retire(1), 1), (Retire(2), 1), (Retire(3), 1)]


def test_what_a_speaking_peer_does_not_acknowledge_leaves_again_after_the_drain() -> None:
    peer = Peer()
    conversation = Conversation(peer.transmit, resend_s=5.0)
    conversation.send(Retire(1), ())
    assert peer.said() == [(Retire(1), 0)]
    for now in (0.0, 4.9, 5.0):
        conversation.hear(Packet(0, 0, Beat(), ()), now=now)
        assert peer.said() == []
        assert len(conversation.backlog) == (now == 5.0)
    conversation.flush()
    assert peer.said() == [(Retire(1), 0)]
