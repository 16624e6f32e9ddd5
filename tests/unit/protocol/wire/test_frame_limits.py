"""A frame that the other side would not accept is not sent."""

import pytest

from protocol.errors import LocalError
from protocol.messages import Beat
from protocol.wire.frame_limits import check_sizes


def test_each_frame_may_be_as_large_as_the_limit():
    check_sizes(Beat(), [b"x" * 10, b"", b"y" * 10], 10)


@pytest.mark.parametrize("frames", [[b"x" * 11], [b"", b"x" * 10, b"x" * 11]])
def test_a_larger_one_is_refused_with_its_message_and_both_sizes(frames):
    with pytest.raises(LocalError, match=r"A frame of Beat has 11 bytes; the other side accepts 10\."):
        check_sizes(Beat(), frames, 10)
