"""The codec gives back what it was given, and refuses everything else with RemoteError."""

import contextlib
import struct
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import messages
from protocol.errors import RemoteError
from protocol.messages import (
    ITEM_BYTES,
    PROTOCOL_VERSION,
    Ask,
    Beat,
    Close,
    Delta,
    Encode,
    EpisodeEnded,
    ExamplesEncoded,
    Generated,
    GroupScored,
    Message,
    PromptsEncoded,
    Pulled,
    Ready,
    TrainStepFinished,
)
from protocol.wire.codec import Packet, check_frames, decode, encode, from_fields, to_fields

KINDS = sorted({*messages.FROM_WORKER, *messages.TO_WORKER}, key=lambda kind: kind.tag)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type may have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        (bounds,) = arguments[1:]
        if arguments[0] is int:
            return st.integers(bounds.ge, bounds.lt - 1)
        if arguments[0] is float:
            most = bounds.lt if bounds.le is None else bounds.le
            return st.floats(bounds.ge, most, exclude_max=bounds.le is None)
        if arguments[0] is not str:
            return values_of(arguments[0])
        if hint == messages.Endpoint:
            return st.sampled_from(["tcp://10.0.0.1:29500", "tcp://[fe80::1%eth0]:1", "tcp://node-1:65535"])
        plain = st.characters(exclude_categories=["C", "Zl", "Zp"])
        return st.text(plain, min_size=bounds.min_length or 0, max_size=20)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if hasattr(hint, "_fields"):
        members = get_type_hints(hint, include_extras=True)
        return st.tuples(*(values_of(members[name]) for name in hint._fields)).map(lambda v: hint(*v))
    return st.booleans() if hint is bool else st.sampled_from([hint])


def messages_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of a kind; counts that frames must agree with stay small."""
    if kind is Generated:
        small = st.integers(0, 3)
        delta = st.builds(Delta, small, small, small, small, small, small, st.sampled_from(["", "stop"]))
        return st.lists(delta, max_size=4).map(lambda deltas: Generated.of(tuple(deltas)))
    if kind is PromptsEncoded:
        pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4).map(tuple)
        return st.builds(PromptsEncoded, pairs, st.just(((3, "too long"),)))
    if kind is ExamplesEncoded:
        small = st.integers(0, 3)
        triples = st.lists(st.tuples(small, small, small), max_size=4).map(tuple)
        return st.builds(ExamplesEncoded, triples, st.just(((3, "too long"),)))
    hints = get_type_hints(kind, include_extras=True)
    if kind is Ask:
        small = {field.name: st.integers(0, 3) for field in fields(Ask)}
        others = {name: values_of(hints[name]) for name in ("digest", "is_trained", "cause")}
        return st.builds(Ask, **small | others)
    if kind is EpisodeEnded:
        named = {field.name: values_of(hints[field.name]) for field in fields(kind)}
        return st.builds(EpisodeEnded, **named | {"talk": st.integers(0, 3)})
    if kind is TrainStepFinished:
        corrected = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=3).map(tuple)
        named = {name: values_of(hints[name]) for name in ("policy_version", "train_s", "metrics")}
        return st.builds(TrainStepFinished, **named, corrected=corrected)
    return st.builds(kind, *(values_of(hints[field.name]) for field in fields(kind)))


def frames_for(message: Message) -> tuple[bytes, ...]:
    if isinstance(message, Generated):
        count = sum(delta.count for delta in message.deltas)
        return bytes(ITEM_BYTES * count), struct.pack("<f", -0.5) * count
    if isinstance(message, PromptsEncoded):
        return tuple(bytes(ITEM_BYTES * count) for _, count in message.encoded)
    if isinstance(message, ExamplesEncoded):
        return tuple(bytes(ITEM_BYTES * sum(counts)) for _, *counts in message.encoded)
    if isinstance(message, Ask):
        return bytes(ITEM_BYTES * message.given), *([bytes(message.saved)] if message.saved else [])
    if isinstance(message, TrainStepFinished | EpisodeEnded):
        return tuple(bytes(frame.size_bytes) for frame in message.incoming_frames())
    return tuple(b"abcd" for _ in message.outgoing_payload())


packets = st.sampled_from(KINDS).flatmap(messages_of).map(lambda m: Packet(7, 5, m, frames_for(m)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was_sent(kind: type[Message]) -> None:
    @settings(max_examples=30)
    @given(messages_of(kind))
    def comes_back(message: Message) -> None:
        packet = Packet(7, 5, message, frames_for(message))
        assert decode(encode(packet)) == packet

    comes_back()


@settings(max_examples=400)
@given(packets, st.data())
def test_mutated_bytes_are_refused_with_a_remote_error_or_mean_something(packet: Packet, data: Any) -> None:
    frames = encode(packet)
    which = data.draw(st.integers(0, len(frames) - 1))
    place = data.draw(st.integers(0, len(frames[which])))
    junk = data.draw(st.binary(max_size=4))
    cut = data.draw(st.integers(0, 4))
    frames[which] = frames[which][:place] + junk + frames[which][place + cut :]
    frames += data.draw(st.sampled_from([[], [b"surplus"]]))
    with contextlib.suppress(RemoteError):
        assert isinstance(decode(frames), Packet)


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=3))
def test_random_frames_are_refused_with_a_remote_error(frames: list[bytes]) -> None:
    with pytest.raises(RemoteError):
        decode(frames)


def header(
    tag: object, values: object, protocol: object = PROTOCOL_VERSION, *, tail: bytes = b""
) -> list[bytes]:
    return [msgpack.packb((tag, protocol, 1, 0, values)) + tail]


def generated(count: int, *frames: bytes) -> list[bytes]:
    return encode(Packet(1, 0, Generated.of((Delta(0, 0, 0, 0, count, 0, ""),)), frames))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (header(Ready.tag, (True, 1, 1)), "Ready is malformed at policy_version"),
        (header(Ready.tag, ("1", 1, 1)), "valid integer"),
        (header(Ready.tag, (1.0, 1, 1)), "valid integer"),
        (header(Ready.tag, (-1, 1, 1)), "greater than or equal"),
        (header(Ready.tag, (2**31, 1, 1)), "less than"),
        (header(Ready.tag, (1, 1)), "Ready is malformed"),
        (header(Ready.tag, (1, 1, 1, 1)), "Ready is malformed"),
        (header(Pulled.tag, (1, "d", float("nan"), 0)), "Pulled is malformed at pull_s: expected a finite"),
        (header(GroupScored.tag, (1, 1, (float("inf"),), ())), "finite"),
        (header(Pulled.tag, (1, "", 1.0, 0)), "Pulled is malformed at digest: expected at least 1 character"),
        (header(Close.tag, ("x", 1)), "valid boolean"),
        (header(Ready.tag, {"policy_version": 1}), "msgpack"),
        (header(Ready.tag, msgpack.ExtType(4, b"x")), "msgpack"),
        (header(99, ()), "tag 99 is unknown"),
        (header(Beat.tag, (), PROTOCOL_VERSION + 1), f"speaks protocol {PROTOCOL_VERSION + 1}"),
        (header(Beat.tag, (), tail=b"\0"), "msgpack"),
        ([b"\x91" * 100_000], "msgpack"),
        ([b"\xdd\xff\xff\xff\xff"], "msgpack"),
        ([b"\xa2\xff\xfe"], "msgpack"),
        ([], "header"),
        ([*header(Beat.tag, ()), b"x"], "frames of"),
        (header(Encode.tag, ((1, 2),)), "came with 0 frames"),
        (generated(2, b"12345678", b"1234"), "frames of"),
        (generated(1, b"1234", struct.pack("<f", float("nan"))), "not finite"),
        (generated(1, b"1234", struct.pack("<f", 0.5)), "not finite"),
    ],
)
def test_what_the_schema_does_not_allow_is_refused_in_words(frames: list[bytes], words: str) -> None:
    with pytest.raises(RemoteError, match=words):
        decode(frames)


@given(packets)
@settings(max_examples=50)
def test_fields_alone_make_the_message_again(packet: Packet) -> None:
    assert from_fields(packet.message.tag, to_fields(packet.message)) == packet.message


@pytest.mark.parametrize("logprob", [float("-inf"), float("inf"), float("nan"), 2e-3])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_single_logprob_that_no_token_can_have_is_refused_wherever_it_stands(logprob, place):
    report, tokens = Generated.of((Delta(0, 0, 1, 0, 3, 0, ""),)), bytes(3 * ITEM_BYTES)
    logprobs = [-0.5, 0.0, -1e30]
    check_frames(report, (tokens, struct.pack("<3f", *logprobs)))
    logprobs[place] = logprob
    with pytest.raises(RemoteError, match="not finite numbers <= 0"):
        check_frames(report, (tokens, struct.pack("<3f", *logprobs)))
