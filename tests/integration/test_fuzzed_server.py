"""A smaller, seeded run of benchmarks/fuzz.py: noise changes nothing for those that speak properly."""

import asyncio
from pathlib import Path

from protocol.messages import Attach, Message, Ready, Retire
from protocol.wire.connection import Connection
from protocol.wire.security import Keyring, load_worker_key, make_keys
from protocol.wire.server import Server
from tests.support.malformed import fuzz_codec, fuzz_door, fuzz_socket

LIMIT_S = 120


def test_the_codec_answers_twenty_thousand_malformed_frames_with_remote_errors() -> None:
    outcomes = fuzz_codec(20_000, seed=1)
    assert outcomes.total() == 20_000
    assert outcomes["refused"] > 10_000
    assert outcomes["accepted"] > 1_000  # some mutations leave a valid message: the fuzzer reaches the schema


class Flooded:
    """A server, a good worker that answers each `Retire(n)` with `Ready(n + 1)`, and word of all others."""

    def __init__(self, keys: Path | None) -> None:
        self.heard: list[Message] = []
        self.told: list[Message] = []
        self.faults: list[str] = []
        self.refusals: list[str] = []
        self._news = asyncio.Event()
        keyring = Keyring(keys) if keys else None
        self.server = Server(
            "tcp://127.0.0.1:*",
            on_message=self._on_message,
            on_fault=lambda peer, _: self.faults.append(peer),
            on_refusal=self.refusals.append,
            keys=keyring,
        )
        self.good = Connection(
            self.server.endpoint,
            on_message=self._on_told,
            on_fault=self.faults.append,
            key=load_worker_key(keys / "good.key") if keys else None,
        )
        self.server.start()
        self.good.start()
        self.good.send(Attach("rollout", "good", 1, "here"))
        self.good.send(Ready(0, 0, 0))

    def _on_message(self, peer: str, message: Message, frames: tuple[bytes, ...]) -> None:
        if peer == self.good.routing_id.hex() and isinstance(message, Ready):
            self.heard.append(message)
            self.server.send(peer, Retire(message.policy_version))

    def _on_told(self, message: Message, frames: tuple[bytes, ...]) -> None:
        if isinstance(message, Retire):
            self.told.append(message)
            self._news.set()
            self.good.send(Ready(len(self.told), 0, 0))

    async def serve(self, more: int) -> None:
        """Until the worker has had so many more answers."""
        wanted = len(self.told) + more
        while len(self.told) < wanted:
            self._news.clear()
            await self._news.wait()

    def check(self) -> None:
        """The worker was served in order, and never blamed."""
        assert self.told == [Retire(n) for n in range(len(self.told))]
        assert self.heard == [Ready(n, 0, 0) for n in range(len(self.heard))]
        assert self.good.routing_id.hex() not in self.faults

    def close(self) -> None:
        for each in (self.good, self.server):
            each.close()


async def test_a_worker_is_served_in_order_while_the_socket_is_flooded_with_noise() -> None:
    flooded = Flooded(None)
    async with asyncio.timeout(LIMIT_S):
        await flooded.serve(1)
        sent = await asyncio.to_thread(fuzz_socket, flooded.server.endpoint, 1000, seed=2)
        await flooded.serve(10)  # it goes on after the last of the noise
    flooded.check()
    assert sent["frames"] >= 1000
    assert len(flooded.faults) <= sent["let_in"]  # nobody else gets as far as a session
    assert len(flooded.refusals) <= 4  # of hundreds of peers that never attached: the 1st, 10th, 100th
    flooded.close()


async def test_under_curve_noise_of_an_admitted_key_ends_only_its_own_sessions(tmp_path: Path) -> None:
    for name in ("good", "noise"):
        make_keys(tmp_path, name)
    flooded, key = Flooded(tmp_path), load_worker_key(tmp_path / "noise.key")
    async with asyncio.timeout(LIMIT_S):
        await flooded.serve(1)
        sent = await asyncio.to_thread(fuzz_socket, flooded.server.endpoint, 600, seed=3, key=key)
        await flooded.serve(10)
    flooded.check()
    assert sent["frames"] >= 600
    assert 0 < len(flooded.faults) <= sent["let_in"]
    assert len(flooded.refusals) <= 4
    flooded.close()


async def test_under_curve_noise_without_a_valid_key_gets_nowhere(tmp_path: Path) -> None:
    make_keys(tmp_path, "good")
    flooded, server = Flooded(tmp_path), load_worker_key(tmp_path / "good.key").server
    async with asyncio.timeout(LIMIT_S):
        await flooded.serve(1)
        sent = await asyncio.to_thread(fuzz_door, flooded.server.endpoint, 600, seed=4, server=server)
        await flooded.serve(10)
    flooded.check()
    assert sent["frames"] >= 600
    assert sent["refused"] > 0
    assert flooded.faults == []  # not one word of it was read
    assert list(flooded.server._peers) == [flooded.good.routing_id]
    assert len(flooded.refusals) <= 6  # an unknown key, and no key: the 1st, 10th, 100th of each
    flooded.close()
