"""Progress in columns: what is unequal, and what it is made of."""

import pytest

from protocol.errors import RemoteError
from protocol.messages import Delta, Generated
from protocol.wire.codec import Packet, decode, encode, from_fields, to_fields

DELTAS = (Delta(7, 0, 1, 4, 2, 3, ""), Delta(7, 1, 2, 0, 1, 3, "stop"), Delta(8, 0, 1, 0, 0, 2, "interrupt"))


def test_columns_are_the_deltas_and_come_back_over_the_wire():
    message = Generated.of(DELTAS)
    assert message.deltas == DELTAS == tuple(Delta(*row) for row in message.rows)
    assert message.starts == (4, 0, 0)
    assert list(message.keys) == [delta[:3] for delta in DELTAS]
    frames = (bytes(12), bytes(12))
    assert decode(encode(Packet(1, 0, message, frames))).message == message
    assert Generated.of(()).deltas == ()


@pytest.mark.parametrize("column", range(7))
def test_columns_of_unequal_length_are_the_peers_fault(column):
    message = Generated.of(DELTAS)
    fields = list(to_fields(message))
    fields[column] = fields[column][:-1]
    with pytest.raises(RemoteError, match=r"Generated is malformed: its columns have \[2, 3\] items"):
        from_fields(Generated.tag, tuple(fields))
