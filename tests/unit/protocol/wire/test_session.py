"""A session delivers exactly what was sent, once and in order, over a channel that does its worst."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.errors import LocalError
from protocol.messages import Beat, PromptsEncoded, Retire
from protocol.wire.codec import Packet
from protocol.wire.session import Session

SIDES = st.sampled_from([0, 1])


class LossyChannel(RuleBasedStateMachine):
    """Two sessions; packets between them are lost, doubled and reordered at will."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = (Session(), Session())
        self.sent: tuple[list[int], list[int]] = ([], [])
        self.delivered: tuple[list[int], list[int]] = ([], [])  # by the sender's side
        self.channel: tuple[list[Packet], list[Packet]] = ([], [])

    @rule(side=SIDES)
    def send(self, side: int) -> None:
        self.sent[side].append(len(self.sent[side]))
        self.channel[side].append(self.sessions[side].send(Retire(self.sent[side][-1])))

    @rule(side=SIDES)
    def beat(self, side: int) -> None:
        self.channel[side].append(self.sessions[side].send(Beat()))

    @rule(side=SIDES)
    def resend(self, side: int) -> None:
        self.channel[side].extend(self.sessions[side].resend())

    @rule(side=SIDES, place=st.integers(0, 50), is_copy=st.booleans())
    def deliver(self, side: int, place: int, is_copy: bool) -> None:
        if self.channel[side]:
            place %= len(self.channel[side])
            packet = self.channel[side][place]
            if not is_copy:
                del self.channel[side][place]
            self._receive(side, packet)

    @rule(side=SIDES, place=st.integers(0, 50))
    def lose(self, side: int, place: int) -> None:
        if self.channel[side]:
            del self.channel[side][place % len(self.channel[side])]

    @invariant()
    def what_arrived_is_the_beginning_of_what_was_sent(self) -> None:
        for side in (0, 1):
            count = len(self.delivered[side])
            assert self.delivered[side] == self.sent[side][:count]
            assert self.sessions[side].unacked >= len(self.sent[side]) - count

    def teardown(self) -> None:
        for side in (0, 1, 0):  # one good exchange, then the acknowledgement of the second direction
            for packet in [*self.sessions[side].resend(), self.sessions[side].send(Beat())]:
                self._receive(side, packet)
        assert self.delivered == self.sent
        assert [session.unacked for session in self.sessions] == [0, 0]

    def _receive(self, side: int, packet: Packet) -> None:
        if self.sessions[1 - side].receive(packet) and isinstance(packet.message, Retire):
            self.delivered[side].append(packet.message.policy_version)


TestLossyChannel = LossyChannel.TestCase
TestLossyChannel.settings = settings(max_examples=150, stateful_step_count=40)


def test_a_peer_that_lets_too_much_pile_up_is_an_error() -> None:
    session = Session(max_unacked_bytes=10)
    message = PromptsEncoded(((0, 2),), ())
    for size in (8, 100):  # one may be as large as it is
        session.send(message, (bytes(size),))
    with pytest.raises(LocalError, match="108 bytes wait"):
        session.send(message, (b"",))


def test_acknowledged_bytes_make_room_again() -> None:
    session = Session(max_unacked_bytes=10)
    message = PromptsEncoded(((0, 2),), ())
    session.send(message, (bytes(18),))
    session.receive(Packet(0, 1, Beat(), ()))
    assert session.send(message, (bytes(8),)).sequence == 2
