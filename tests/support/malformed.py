"""Malformed frames, against the codec and against the sockets of a live run."""

import contextlib
import random
import socket
from collections import Counter
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgpack
import zmq

from protocol import messages
from protocol.errors import RemoteError
from protocol.messages import ITEM_BYTES, Attach, DrainWorker, Generated, Message, PromptsEncoded
from protocol.wire.codec import Packet, decode, encode, unpack
from protocol.wire.security import ROLES, WorkerKey, secure_client
from protocol.wire.sockets import BROKEN, GARBLED, REFUSED

KINDS = sorted({*messages.FROM_WORKER, *messages.TO_WORKER}, key=lambda kind: kind.tag)
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**53, 2**63, 1.5, float("nan"), float("inf"), "", "x" * 70_000, b"", b"\0" * 64,
    [], [[]] * 40, {}, {"a": 1}, msgpack.ExtType(5, b"x"), [None] * 1000,
)  # fmt: skip
PATIENCE_MS = 5000  # that a server gets to refuse somebody
Frames = list[bytes]


def packet_of(kind: type[Message], rng: random.Random) -> Packet:
    """A valid packet of a kind, with frames that agree with it."""
    hints = get_type_hints(kind, include_extras=True)
    values = [_value(hints[field.name], rng) for field in fields(kind)]  # type: ignore[arg-type]
    if kind is Generated:  # columns of one length, and no kept sets
        *columns, _ = values
        length = min(map(len, columns))
        values = [*(column[:length] for column in columns), ()]
    message = kind(*values)
    if isinstance(message, Generated):
        size = ITEM_BYTES * sum(message.counts)
        payload: tuple[bytes, ...] = (bytes(size), bytes(size))
    elif isinstance(message, PromptsEncoded):
        payload = tuple(bytes(ITEM_BYTES * count) for _, count in message.encoded)
    else:
        payload = tuple(b"abcd" for _ in message.outgoing_payload())
    return Packet(rng.randrange(4), rng.randrange(4), message, payload)


def mutate(frames: Frames, rng: random.Random) -> Frames:
    """The same frames with one thing wrong, or none."""
    frames, which, how = list(frames), rng.randrange(len(frames)), rng.randrange(8)
    one = frames[which]
    place = rng.randrange(len(one) + 1)
    if how == 0 and one:
        place = min(place, len(one) - 1)
        frames[which] = one[:place] + bytes([one[place] ^ (1 << rng.randrange(8))]) + one[place + 1 :]
    elif how == 1:
        frames[which] = one[:place]
    elif how == 2:
        frames[which] = one[:place] + rng.randbytes(rng.randrange(1, 9)) + one[place + rng.randrange(4) :]
    elif how == 3:
        frames[which] = rng.randbytes(rng.randrange(60))
    elif how == 4:
        frames = rng.choices(frames, k=rng.randrange(1, 5))
    elif how == 5:
        frames += [rng.randbytes(rng.randrange(9))] * rng.randrange(1, 4)
    elif how == 6:
        frames[0] = _with_a_hostile_value(frames[0], rng)
    return frames


def fuzz_codec(count: int, *, seed: int) -> Counter[str]:
    """How many of `count` frames were refused and accepted. Raises: whatever is neither."""
    rng, outcomes = random.Random(seed), Counter[str]()
    while sum(outcomes.values()) < count:
        good = encode(packet_of(rng.choice(KINDS), rng))
        for _ in range(20):
            try:
                decode(mutate(good, rng))
            except RemoteError:
                outcomes["refused"] += 1
            else:
                outcomes["accepted"] += 1
    return outcomes


def fuzz_socket(endpoint: str, count: int, *, seed: int, key: WorkerKey | None = None) -> Counter[str]:
    """Send at least `count` malformed packets from many peers; `let_in`: of those, the admitted; blocking."""
    rng, sent = random.Random(seed), Counter[str]()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context:
        while sent["frames"] < count:
            dealer = _dealer(context, rng)
            if key is not None:
                secure_client(dealer, key)
            dealer.connect(endpoint)
            is_in = rng.random() < 0.5
            if is_in:
                hello = Attach(rng.choice(["rollout", "reward", "trainer"]), "noise", 1, "here")
                dealer.send_multipart(encode(Packet(1, 0, hello, ())))
            for packet in _noise(rng):
                is_in = is_in or (key is None and _is_order(packet))
                dealer.send_multipart(packet)
                sent["frames"] += 1
            sent["let_in"] += is_in
            dealer.close()
            sent["peers"] += 1
    return sent


def fuzz_door(endpoint: str, count: int, *, seed: int, server: str) -> Counter[str]:
    """Send at least `count` packets to a server with keys from peers without a valid one; blocking.

    In turn: a key that nobody has admitted, no key, and a bare TCP connection that speaks ZeroMQ's greeting
    for CURVE, or half of it, and then noise. `server`: its public key, as an outsider may know it.
    """
    rng, sent = random.Random(seed), Counter[str]()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context:
        while sent["frames"] < count:
            packets = _noise(rng)
            sent["peers"] += 1
            if sent["peers"] % 3 == 0:
                _knock(endpoint, packets, rng)
                sent["frames"] += len(packets)
                continue
            dealer = _dealer(context, rng)
            if sent["peers"] % 3 == 1:
                public, secret = (half.decode() for half in zmq.curve_keypair())
                forged = WorkerKey(name="x", roles=ROLES, public=public, secret=secret, server=server)
                secure_client(dealer, forged)
            refused = dealer.get_monitor_socket(REFUSED | GARBLED | BROKEN)
            dealer.connect(endpoint)
            with contextlib.suppress(zmq.Again):  # refused already: libzmq has thrown the connection away
                for packet in packets:
                    dealer.send_multipart(packet, zmq.NOBLOCK)
                    sent["frames"] += 1
            sent["refused"] += refused.poll(PATIENCE_MS) > 0
            dealer.disable_monitor()
            refused.close(0)
            dealer.close(0)
    return sent


def _dealer(context: "zmq.Context[zmq.Socket[bytes]]", rng: random.Random) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 2000)
    dealer.setsockopt(zmq.SNDTIMEO, 20_000)
    dealer.setsockopt(zmq.ROUTING_ID, b"\x02" + rng.randbytes(15))
    return dealer


def _noise(rng: random.Random) -> list[Frames]:
    """What one peer says."""
    said = [packet_of(rng.choice(KINDS), rng)._replace(sequence=n + 2) for n in range(rng.randrange(1, 8))]
    return [mutate(encode(packet), rng) for packet in said]


def _knock(endpoint: str, packets: list[Frames], rng: random.Random) -> None:
    """The noise over bare TCP, after as much of a greeting (ZMTP 3.1, CURVE, client) as chance has it."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    words = greeting[: rng.choice((0, 11, 12, 64, 64, 64))] + b"".join(bytes(f) for p in packets for f in p)
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_MS / 1000) as peer,
        contextlib.suppress(OSError),  # it may hang up in the middle
    ):
        peer.sendall(words)


def _is_order(frames: Frames) -> bool:
    """Whether noise came out as a whole order of an operator, which lets its sender in without an Attach."""
    try:
        return isinstance(decode([bytes(frame) for frame in frames]).message, DrainWorker)
    except RemoteError:
        return False


def _value(hint: Any, rng: random.Random) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated and arguments[0] not in (int, float, str):
        return _value(arguments[0], rng)
    if hint == messages.Endpoint:
        return "tcp://10.0.0.1:29500"
    if origin is Annotated:
        make = {int: lambda: rng.randrange(9), float: rng.random, str: lambda: "text"}
        return make[arguments[0]]()
    if origin is Literal:
        return rng.choice(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(_value(arguments[0], rng) for _ in range(rng.randrange(4)))
    if origin is tuple:
        return tuple(_value(each, rng) for each in arguments)
    if hasattr(hint, "_fields"):
        members = get_type_hints(hint, include_extras=True)
        return hint(*(_value(members[name], rng) for name in hint._fields))
    return rng.random() < 0.5 if hint is bool else hint()


def _with_a_hostile_value(header: bytes, rng: random.Random) -> bytes:
    """The header with one value, anywhere in it, replaced."""

    def listed(value: Any) -> Any:
        return [listed(each) for each in value] if isinstance(value, tuple) else value

    tree = listed(unpack(header))
    node = tree
    while True:
        place = rng.randrange(len(node))
        if isinstance(node[place], list) and node[place] and rng.random() < 0.8:
            node = node[place]
            continue
        node[place] = rng.choice(HOSTILE)
        return msgpack.packb(tree, use_bin_type=True)
