"""Events survive the journal, and nothing else comes out of it."""

from typing import get_args

import pytest

from controller.core import events
from controller.durability.event_codec import decode_event, encode_event
from protocol import messages
from protocol.errors import RemoteError
from protocol.ids import TrajectoryId
from protocol.wire.codec import decode, pack

MESSAGES = [
    messages.Attach("rollout", "rollout-0", 123, "here"),
    messages.Beat(),
    messages.Ready(0, 64, 4096),
    messages.Detach("told to"),
    messages.WorkerFailed("no memory"),
    messages.PromptsEncoded(((0, 5), (1, 6)), ((2, "too long"),)),
    messages.Generated.of((messages.Delta(3, 1, 0, 0, 2, 5, ""), messages.Delta(3, 2, 1, 4, 0, 5, "stop"))),
    messages.GenerationFailed(3, 1, 0, "out of cache"),
    messages.InstanceStatus(9, 5, 3, 2, 700, 10, 30, 0.5, 100, 0.25, 7000, 1, ((1, 2, 3),)),
    messages.Pulled(5, "digest", 0.125),
    messages.PullFailed(5, "truncated"),
    messages.GroupScored(3, 0, (1.0, 0.0, -0.5)),
    messages.ScoreFailed(3, 0, "raised", "{}"),
    messages.CheckpointSaved(5, "checkpoints/step_5"),
]
EVENTS: list[events.Event] = [
    events.Started(),
    events.Started(events.RULES),
    *(events.Received("01ab", message) for message in MESSAGES),
    events.PeerFaulted("01ab", "broke the protocol"),
    events.WorkerExited("rollout-0", "rollout", -9, "last\nwords"),
    events.PromptsRead(16, 8, True),
    events.HeldOutRead(24, ("a", "b"), "digest"),
    events.StopRequested("Ctrl-C"),
    events.Tick(),
    events.Restarted("{}", "runs/run", ("here", "there")),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(getattr(e, "message", e)).__name__)
def test_an_event_comes_back_equal(event: events.Event) -> None:
    back = decode_event(encode_event(event))
    assert back == event
    assert type(back) is type(event)


def test_every_kind_of_event_is_among_them() -> None:
    missing = {kind.__name__ for kind in get_args(events.Event)} - {type(event).__name__ for event in EVENTS}
    assert not missing, f"add one {' and one '.join(sorted(missing))} to EVENTS here"


def test_nested_tuples_come_back_with_their_names() -> None:
    back = decode_event(encode_event(events.Received("01", MESSAGES[6])))
    assert isinstance(back, events.Received)
    assert isinstance(back.message, messages.Generated)
    assert back.message.deltas[1].ending == "stop"
    assert TrajectoryId(back.message.deltas[0].group, back.message.deltas[0].member) == (3, 1)


@pytest.mark.parametrize(
    "record",
    [
        (),
        7,
        ("1",),
        (True,),
        (99,),
        (1, "another rule"),
        (1, 2, "surplus"),
        (3, "01ab"),
        (3, "01ab", 5),
        (4, "name", "gardener", 0, ""),
        (5, 0, 1, 1),
        (5, 0.0, 1, True),
        (2, "01ab", 2, ("surplus",)),
        (2, "01ab", 200, ()),
        (2, "01ab", 10, (5, "digest", float("nan"))),
    ],
    ids=str,
)
def test_a_record_that_is_no_event_is_refused(record: object) -> None:
    with pytest.raises(RemoteError):
        decode_event(pack(record))


def end_by(reward: float, *more: object) -> bytes:
    """The record of an episode's end, with the fields behind its reward that a release knew."""
    return pack((2, "01ab", 26, (7, 1, 2, "turns", (reward,), *more)))


def test_what_an_older_release_has_kept_has_the_defaults_of_the_fields_that_it_did_not_know() -> None:
    later = ((), ((1, 0, 0.5),), (("seen", 3.0),), 0, ((1, 0, 2.5),), "it is over")
    back = decode_event(end_by(0.5, *later))
    assert isinstance(back, events.Received)
    ended = messages.EpisodeEnded(7, 1, 2, "turns", (0.5,), *later)  # type: ignore[arg-type]
    assert (back.message, ended.earned) == (ended, "")
    assert decode_event(end_by(0.5, *later, "")) == back
    assert decode_event(end_by(0.5)) == events.Received(
        "01ab", messages.EpisodeEnded(7, 1, 2, "turns", (0.5,))
    )


def test_the_beginning_of_a_run_of_an_older_release_has_the_rules_of_that_release() -> None:
    assert decode_event(pack((1,))) == events.Started(events.OLD_RULES)
    assert decode_event(pack((5, 16, 8, True))) == events.PromptsRead(16, 8, True)


@pytest.mark.parametrize(
    "record",
    [
        pack((2, "01ab", 26, (7, 1, 2, "turns"))),  # without a field that has no default
        end_by(0.5, (), (), (), 0, (), "", "alone"),
        end_by(0.5, (), (), (), 0, (), "", "turns", "surplus"),
        end_by(0.5, "style"),
        end_by(float("nan")),
    ],
    ids=str,
)
def test_what_no_release_has_kept_is_refused(record: bytes) -> None:
    with pytest.raises(RemoteError, match="EpisodeEnded is malformed"):
        decode_event(record)


def test_a_missing_field_is_refused_on_the_wire() -> None:
    frame = pack((26, messages.PROTOCOL_VERSION, 1, 0, (7, 1, 2, "turns", (0.5,))))
    with pytest.raises(RemoteError, match="EpisodeEnded is malformed at its length"):
        decode([frame])


def test_half_a_record_is_refused() -> None:
    with pytest.raises(RemoteError):
        decode_event(encode_event(events.PeerFaulted("01ab", "reason"))[:-3])
