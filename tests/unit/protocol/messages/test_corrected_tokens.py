"""The frames of a report on corrected tokens."""

import struct

import pytest

from protocol.errors import RemoteError
from protocol.messages import Stretch, TrainStepFinished
from protocol.wire.codec import check_frames

REPORT = TrainStepFinished(3, 0.5, (), ((7, 0, 2), (7, 2, 1)))


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_frames_are_cut_by_trajectory():
    frames = (floats(-1.0, -2.0, -3.0), floats(1.0, 0.5, 0.0))
    check_frames(REPORT, frames)
    assert list(REPORT.kept(frames)) == [
        (7, [Stretch("trained_logprobs", 0, 0, 0, floats(-1.0, -2.0)),
             Stretch("token_weights", 0, 0, 0, floats(1.0, 0.5))]),
        (7, [Stretch("trained_logprobs", 2, 0, 0, floats(-3.0)),
             Stretch("token_weights", 2, 0, 0, floats(0.0))]),
    ]  # fmt: skip


def test_a_logprob_may_be_unknown():
    check_frames(REPORT, (floats(float("nan"), float("-inf"), 0.0), floats(1, 1, 1)))


@pytest.mark.parametrize(
    ("logprobs", "weights"),
    [
        ((-1, -1, 0.5), (1, 1, 1)),
        ((-1, -1, float("inf")), (1, 1, 1)),
        ((-1, -1, -1), (1, 1, -0.1)),
        ((-1, -1, -1), (1, float("nan"), 1)),
        ((-1, -1, -1), (1, float("inf"), 1)),
        ((-1, -1), (1, 1, 1)),
    ],
)
def test_numbers_that_cannot_be_are_refused(logprobs, weights):
    with pytest.raises(RemoteError, match="TrainStepFinished"):
        check_frames(REPORT, (floats(*logprobs), floats(*weights)))


def test_a_report_that_names_nobody_has_no_frames():
    check_frames(TrainStepFinished(3, 0.5, ()), ())
    with pytest.raises(RemoteError):
        check_frames(TrainStepFinished(3, 0.5, ()), (b"", b""))
