"""A smaller, seeded run of benchmarks/fuzz.py: noise changes nothing for those that speak properly."""

import asyncio

from benchmarks.fuzz import fuzz_codec, fuzz_socket
from protocol.messages import Attach, Message, Ready, Retire
from protocol.transport import Connection, Server

LIMIT_S = 120


def test_the_codec_answers_twenty_thousand_malformed_frames_with_remote_errors() -> None:
    outcomes = fuzz_codec(20_000, seed=1)
    assert outcomes.total() == 20_000
    assert outcomes["refused"] > 10_000
    assert outcomes["accepted"] > 1_000  # some mutations leave a valid message: the fuzzer reaches the schema


async def test_a_worker_is_served_in_order_while_the_socket_is_flooded_with_noise() -> None:
    heard: list[Message] = []
    told: list[Message] = []
    faults: list[str] = []
    refusals: list[str] = []
    news = asyncio.Event()

    def on_message(peer: str, message: Message, frames: tuple[bytes, ...]) -> None:
        if peer == good.routing_id.hex() and isinstance(message, Ready):
            heard.append(message)
            server.send(peer, Retire(message.policy_version))

    def on_told(message: Message, frames: tuple[bytes, ...]) -> None:
        if isinstance(message, Retire):
            told.append(message)
            news.set()
            good.send(Ready(len(told), 0, 0))

    server = Server(
        "tcp://127.0.0.1:*",
        on_message=on_message,
        on_fault=lambda peer, _: faults.append(peer),
        on_refusal=refusals.append,
    )
    good = Connection(server.endpoint, on_message=on_told, on_fault=faults.append)
    server.start()
    good.start()
    good.send(Attach("rollout", "good", 1, "here"))
    good.send(Ready(0, 0, 0))
    async with asyncio.timeout(LIMIT_S):
        sent = await asyncio.to_thread(fuzz_socket, server.endpoint, 1000, seed=2)
        seen = len(told)
        assert seen > 0
        while len(told) < seen + 10:  # it goes on after the last of the noise
            news.clear()
            await news.wait()
    assert sent["frames"] >= 1000
    assert told == [Retire(n) for n in range(len(told))]
    assert heard == [Ready(n, 0, 0) for n in range(len(heard))]
    assert good.routing_id.hex() not in faults
    assert len(faults) <= sent["let_in"]  # nobody else gets as far as a session
    assert len(refusals) <= 4  # of hundreds of peers that never attached: the 1st, 10th, 100th
    for each in (good, server):
        each.close()
