"""Malformed frames against the codec and a live run: `python -m benchmarks.fuzz [--frames N] [--live N]`.

Every frame is a real message with something wrong with it (bits, lengths, types, counts, order), or noise.
The codec must answer RemoteError or a valid packet, nothing else. The live run must end like an undisturbed
one: same number of steps, no failure, the token ledger closed.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgpack
import psutil
import zmq

from controller import Controller
from controller.config import load_config
from protocol import messages
from protocol.codec import ITEM_BYTES, Packet, decode, encode, unpack
from protocol.errors import RemoteError
from protocol.messages import Attach, DrainWorker, Generated, Message, PromptsEncoded

ROOT = Path(__file__).resolve().parents[1]
KINDS = sorted({*messages.FROM_WORKER, *messages.TO_WORKER}, key=lambda kind: kind.tag)
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**53, 2**63, 1.5, float("nan"), float("inf"), "", "x" * 70_000, b"", b"\0" * 64,
    [], [[]] * 40, {}, {"a": 1}, msgpack.ExtType(5, b"x"), [None] * 1000,
)  # fmt: skip
Frames = list[bytes]


def packet_of(kind: type[Message], rng: random.Random) -> Packet:
    """A valid packet of a kind, with frames that agree with it."""
    hints = get_type_hints(kind, include_extras=True)
    message = kind(*(_value(hints[field.name], rng) for field in fields(kind)))  # type: ignore[arg-type]
    if isinstance(message, Generated):
        size = ITEM_BYTES * sum(delta.count for delta in message.deltas)
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


def fuzz_socket(endpoint: str, count: int, *, seed: int) -> Counter[str]:
    """Send at least `count` malformed packets from many peers; `let_in`: of those, the admitted; blocking."""
    rng, sent = random.Random(seed), Counter[str]()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context:
        while sent["frames"] < count:
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 2000)
            dealer.setsockopt(zmq.SNDTIMEO, 20_000)
            dealer.setsockopt(zmq.ROUTING_ID, b"\x02" + rng.randbytes(15))
            dealer.connect(endpoint)
            is_in = rng.random() < 0.5
            if is_in:
                hello = Attach(rng.choice(["rollout", "reward", "trainer"]), "noise", 1, "here")
                dealer.send_multipart(encode(Packet(1, 0, hello, ())))
            for number in range(rng.randrange(1, 8)):
                packet = packet_of(rng.choice(KINDS), rng)._replace(sequence=number + 2)
                noise = mutate(encode(packet), rng)
                is_in = is_in or _is_order(noise)
                dealer.send_multipart(noise)
                sent["frames"] += 1
            sent["let_in"] += is_in
            dealer.close()
            sent["peers"] += 1
    return sent


def _is_order(frames: Frames) -> bool:
    """Whether noise came out as a whole order of an operator, which lets its sender in without an Attach."""
    try:
        return isinstance(decode([bytes(frame) for frame in frames]).message, DrainWorker)
    except RemoteError:
        return False


def _value(hint: Any, rng: random.Random) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
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


async def _live(count: int, *, seed: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            str(ROOT / "examples" / "quickstart.yaml"),
            [
                f"run.dir={folder}", f"run.steps={steps}", "controller.bind=tcp://127.0.0.1:*",
                "controller.lease_s=5", "controller.respawns=100", "logging.console=quiet",
            ],
        )  # fmt: skip
        said: list[str] = []
        async with Controller(config, on_warning=said.append) as controller:
            endpoint = (controller.run_dir / "address").read_text().strip()
            noise, sent = None, Counter[str]()
            before = psutil.Process().memory_info().rss
            async for step in controller.train():
                if noise is None:  # workers are up, and the run has made a step
                    noise = threading.Thread(
                        target=lambda: sent.update(fuzz_socket(endpoint, count, seed=seed)), daemon=True
                    )
                    noise.start()
                print(f"  step {step.policy_version}: {sent['frames'] or 'noise goes on'}", flush=True)
            assert noise is not None
            await asyncio.to_thread(noise.join)
        summary = controller.summary
        grown = (psutil.Process().memory_info().rss - before) / 2**20
        spent = sum(summary[f"tokens/{e}"] for e in ("trained", "aborted", "filtered", "lost", "in_flight"))
        print(
            f"live: {sent['frames']} packets from {sent['peers']} peers ({sent['let_in']} let in)"
            f" in a run of {steps} steps: success {summary['is_success']}, bound violations "
            f"{summary['staleness/violations']}, ledger closes {spent == summary['tokens/generated']}, "
            f"lines said {len(said)}, memory +{grown:.0f} MiB"
        )
        assert sent["frames"] >= count
        assert summary["is_success"], summary["reason"]
        assert spent == summary["tokens/generated"]


def main() -> None:
    """Print what was sent and what became of it; fails on the first thing that is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="against the codec")
    parser.add_argument("--live", type=int, default=10_000, help="against a run")
    parser.add_argument("--steps", type=int, default=30, help="of that run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, libzmq {zmq.zmq_version()}")
    started = time.monotonic()
    outcomes = fuzz_codec(options.frames, seed=options.seed)
    print(
        f"codec: {outcomes.total()} frames, {outcomes['refused']} refused with RemoteError, "
        f"{outcomes['accepted']} valid after all, nothing else ({time.monotonic() - started:.0f} s)"
    )
    if options.live:
        asyncio.run(_live(options.live, seed=options.seed, steps=options.steps))


if __name__ == "__main__":
    main()
