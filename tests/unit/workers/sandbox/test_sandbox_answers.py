"""What a box makes of answers that are none: the sandbox is broken then, and nothing was scored."""

import asyncio
import json
import os
import socket

import pytest

from workers.sandbox.box import MOST_HEADER_BYTES, Box
from workers.sandbox.job import Job, ProgramLimits, SandboxBroken

GOOD = {"code": 3, "limit": "", "cpu_s": 1, "wall_s": 2.0, "peak_mb": 0, "waited_s": 0, "lengths": [2, 1]}
MOST_OUTPUT = 1000


class ScriptedBox(Box):
    """A box whose warden is the test: it holds the other end of the socket."""

    async def _start(self) -> socket.socket:
        if self._socket is None:
            self._socket, self.warden = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.setblocking(False)
        return self._socket


async def answered(*pieces: bytes):
    """What the box makes of these bytes on the socket for the answer."""
    async with ScriptedBox("limits", python="python") as box:
        asked = asyncio.create_task(box.run(Job("run", {}, limits=ProgramLimits(output_bytes=MOST_OUTPUT))))
        await box._start()
        _, (request, reply, stdin), _, _ = await asyncio.to_thread(socket.recv_fds, box.warden, 1, 4)
        with box.warden, socket.socket(fileno=reply) as there:
            there.sendall(b"".join(pieces))
            there.shutdown(socket.SHUT_WR)
            for descriptor in (request, stdin):
                os.close(descriptor)
            return await asked


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in GOOD.items() if key != name}


async def test_an_answer_is_an_outcome():
    outcome = await answered(framed(json.dumps(GOOD).encode()), b"abc")
    assert (outcome.code, outcome.stdout, outcome.stderr, outcome.wall_s) == (3, b"ab", b"c", 2.0)


@pytest.mark.parametrize(
    "head",
    [
        b"!!!!", b"\xff", b"[]", b"7", b"null", b"{}", b"[" * 60_000,
        *(json.dumps(GOOD | {"lengths": lengths}).encode() for lengths in
          ([1], [1, 1, 1], [-1, 1], [MOST_OUTPUT + 1, 0], [1.0, 1], ["1", "1"], [True, 0], None, 2, "ab")),
        *(json.dumps(without(name)).encode() for name in GOOD),
        *(json.dumps(GOOD | {name: value}).encode() for name in ("code", "cpu_s", "limit")
          for value in ("x", [], None, {})),
    ],
)  # fmt: skip
async def test_a_head_that_is_no_outcome_is_a_broken_sandbox(head):
    with pytest.raises(SandboxBroken, match=r"which is no outcome. Nothing was scored\."):
        await answered(framed(head), b"abc")


async def test_a_head_that_is_too_long_is_refused_before_it_is_read():
    with pytest.raises(SandboxBroken, match=f"it has at most {MOST_HEADER_BYTES}"):
        await answered((MOST_HEADER_BYTES + 1).to_bytes(4, "big"), b" " * 100)


async def test_an_answer_that_breaks_off_is_a_broken_sandbox():
    with pytest.raises(SandboxBroken, match="was killed"):
        await answered(framed(json.dumps(GOOD).encode()), b"a")


async def test_programs_that_are_asked_for_at_once_all_leave_when_a_full_socket_has_room_again():
    async with ScriptedBox("limits", python="python", concurrency=3) as box:
        there = await box._start()
        with box.warden:
            filler = fill(there)
            asked = [asyncio.create_task(box.run(Job("run", {}))) for _ in range(3)]
            for _ in range(100):
                await asyncio.sleep(0)  # by then all that may be sent waits for room
            box.warden.settimeout(30.0)
            assert {await asyncio.to_thread(box.warden.recv, 1) for _ in range(filler)} == {b"x"}
            for _ in asked:
                said, received, _, _ = await asyncio.to_thread(socket.recv_fds, box.warden, 1, 4)
                assert (said, len(received)) == (b"+", 3)
                for descriptor in received:
                    os.close(descriptor)
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert "was killed" in str(outcome)


def fill(there: socket.socket) -> int:
    """Leave no room in a socket; how many bytes that took."""
    count = 0
    while True:
        try:
            there.send(b"x")
        except BlockingIOError:
            return count
        count += 1
