"""Who may attach: no key, wrong key, revoked key, wrong role, no CURVE, garbage. Others notice nothing."""

import argparse
import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from protocol.errors import ConfigError, NoAnswer
from protocol.ids import PeerId
from protocol.messages import Attach, Beat, Close, Message, Ready, Welcome
from protocol.wire.codec import Packet, encode
from protocol.wire.connection import Connection
from protocol.wire.security import (
    DOMAIN,
    CurveAuthenticator,
    Keyring,
    WorkerKey,
    load_worker_key,
    make_keys,
    revoke,
    write_local_key,
)
from protocol.wire.server import Server
from workers.host import serve
from workers.host.overrides import Overrides
from workers.host.stop import Stop
from workers.link.link import Link, LinkClosed

LIMIT_S = 300
SETTINGS = '{"run_dir":"r","seed":0,"steps":1,"model":{},"rollout":{},"reward":{},"trainer":{}}'


class Guarded:
    """A server with keys, and what it heard, lost and refused."""

    def __init__(self, folder: Path, *, strangers: int = 1024) -> None:
        make_keys(folder, "node1", ("rollout",))
        self.keys = Keyring(folder)
        self.folder = folder
        self.heard: list[tuple[PeerId, Message]] = []
        self.faults: list[tuple[PeerId, str]] = []
        self.refusals: list[str] = []
        self._news = asyncio.Event()
        self.server = Server(
            "tcp://127.0.0.1:*", on_message=self._hear, on_fault=self._fault, on_refusal=self._refuse,
            keys=self.keys, strangers=strangers,
        )  # fmt: skip
        self.server.start()

    def key(self, name: str = "node1", *roles: str) -> str:
        path = self.folder / f"{name}.key"
        if not path.exists():
            make_keys(self.folder, name, roles)  # type: ignore[arg-type]
        return str(path)

    async def attach(self, key: str | None, *, role: str = "rollout", name: str = "node1") -> Link:
        return await Link.attach(
            self.server.endpoint,
            Attach(role, name, 1, "here"),  # type: ignore[arg-type]
            key=key,
            limit_s=LIMIT_S,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _hear(self, peer: PeerId, message: Message, frames: tuple[bytes, ...]) -> None:
        if isinstance(message, Attach):
            self.server.send(peer, Welcome(1.0, 600.0, SETTINGS))
        if not isinstance(message, Beat):
            self.heard.append((peer, message))
        self._news.set()

    def _fault(self, peer: PeerId, reason: str) -> None:
        self.faults.append((peer, reason))
        self._news.set()

    def _refuse(self, text: str) -> None:
        self.refusals.append(text)
        self._news.set()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    made = Guarded(tmp_path / "keys")
    yield made
    made.server.close()


async def test_a_key_admits_its_worker_under_the_name_of_the_key(guarded: Guarded) -> None:
    links = [await guarded.attach(guarded.key(), name=name) for name in ("node1", "rollout-0")]
    links[0].send(Ready(1, 0, 0))
    assert await links[0].flush(LIMIT_S)
    names = [message.name for _, message in guarded.heard if isinstance(message, Attach)]
    assert names == ["node1", "node1/rollout-0"]  # it cannot pass for the run's own rollout-0
    assert guarded.refusals == guarded.faults == []
    for link in links:
        await link.aclose()


async def test_whoever_has_no_key_is_told_to_bring_one(guarded: Guarded) -> None:
    with pytest.raises(ConfigError, match="asks for a key"):
        await guarded.attach(None)
    await guarded.until(lambda: guarded.refusals)
    assert "has shown no key" in guarded.refusals[0]
    assert guarded.heard == []


async def test_an_unknown_key_is_refused_by_name(guarded: Guarded, tmp_path: Path) -> None:
    stranger = make_keys(tmp_path / "other", "stranger", ("rollout",))
    assert stranger is not None
    forged = load_worker_key(stranger).model_copy(update={"server": guarded.keys.server.public})
    stranger.write_text(forged.model_dump_json())
    with pytest.raises(ConfigError, match="'stranger' is unknown there, or was revoked"):
        await guarded.attach(str(stranger))
    assert guarded.refusals == [
        f"Refused at {guarded.server.endpoint}: an unknown or revoked key, from 127.0.0.1."
    ]


async def test_a_key_made_for_another_controller_ends_in_words(guarded: Guarded, tmp_path: Path) -> None:
    stranger = make_keys(tmp_path / "other", "stranger", ("rollout",))
    with pytest.raises(NoAnswer, match="has another key than the one in that of 'stranger'"):
        await guarded.attach(str(stranger))
    assert guarded.heard == []


async def test_a_worker_with_a_key_is_not_welcome_where_there_are_none(tmp_path: Path) -> None:
    server = Server("tcp://127.0.0.1:*", on_message=lambda *_: None, on_fault=lambda *_: None)
    server.start()
    with pytest.raises(ConfigError, match=r"has no keys|has another key than"):
        await Link.attach(
            server.endpoint,
            Attach("rollout", "x", 1, "here"),
            key=str(make_keys(tmp_path, "node1", ("rollout",))),
        )
    server.close()


async def test_a_worker_of_the_run_directory_finds_a_controller_that_has_made_another_key(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RETRY_S", 0.01)
    run, former = tmp_path, Keyring(guarded.folder)
    (run / "address").write_text(guarded.server.endpoint)
    write_local_key(run / "local.key", former.local)
    options = argparse.Namespace(address=str(run), key=None, parent=None)
    host = serve._Host(options, Attach("rollout", "r0", 1, "here"), Stop(), Overrides("rollout", []))
    finding = asyncio.create_task(host.find_again(LIMIT_S))
    await guarded.until(lambda: guarded.refusals)  # it has read the key of the controller before
    write_local_key(run / "local.key", guarded.keys.local)
    link = await finding
    assert [message.name for _, message in guarded.heard if isinstance(message, Attach)] == ["r0"]
    await link.aclose()


async def test_a_role_that_the_key_is_not_for_is_refused_and_said_once(guarded: Guarded) -> None:
    for _ in range(5):
        with pytest.raises(ConfigError, match="'node1' is for rollout; the worker attached as trainer"):
            await guarded.attach(guarded.key(), role="trainer")
    assert len(guarded.refusals) == 1
    assert guarded.heard == guarded.faults == []
    link = await guarded.attach(guarded.key("both", "rollout", "trainer"), role="trainer")
    await link.aclose()


@pytest.mark.parametrize("how", ["by the command", "by deleting the file"])
async def test_a_revoked_key_loses_its_session_and_gets_no_other(guarded: Guarded, how: str) -> None:
    other = await guarded.attach(guarded.key("node2", "rollout"), name="node2")
    key = load_worker_key(guarded.key())
    copied = guarded.folder / "copy.key"
    copied.write_text(key.model_dump_json())
    copied.chmod(0o600)
    link = await guarded.attach(str(copied))
    if how == "by the command":
        revoke(guarded.folder, "node1")
    else:
        (guarded.folder / "workers" / "node1.json").unlink()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(LinkClosed, match="key was revoked") as closed:
            await link.receive()
    assert closed.value.is_fault
    assert not closed.value.may_reattach
    assert [reason for _, reason in guarded.faults] == ["Its key was revoked."]
    with pytest.raises(ConfigError, match="was revoked"):
        await guarded.attach(str(copied))
    other.send(Ready(1, 0, 0))
    assert await other.flush(LIMIT_S)
    for each in (link, other):
        await each.aclose()


async def test_nobody_is_admitted_while_the_door_is_shut(guarded: Guarded) -> None:
    guarded.server._door.close()  # type: ignore[union-attr]
    with pytest.raises((ConfigError, TimeoutError)):
        await Link.attach(
            guarded.server.endpoint, Attach("rollout", "node1", 1, "here"), key=guarded.key(), limit_s=1
        )
    assert guarded.heard == []


async def test_a_door_that_breaks_once_answers_the_next(guarded: Guarded) -> None:
    real, calls = guarded.keys.grant, []

    def broken_once(public: str) -> object:
        calls.append(public)
        if len(calls) == 1:
            raise OSError("the disk is away")
        return real(public)

    guarded.keys.grant = broken_once  # type: ignore[method-assign, assignment]
    with pytest.raises(ConfigError, match="was revoked"):
        await guarded.attach(guarded.key())
    assert "the disk is away" in guarded.refusals[0]
    await (await guarded.attach(guarded.key())).aclose()


async def test_words_over_a_connection_with_another_key_change_nothing(guarded: Guarded) -> None:
    """As when another admitted worker takes over the routing id of one whose connection is gone."""
    link = await guarded.attach(guarded.key())
    thief = load_worker_key(guarded.key("node2", "rollout"))
    words = [bytes.fromhex(guarded.heard[0][0]), *encode(Packet(2, 0, Ready(1, 2, 3), ()))]
    guarded.server._user = thief.public
    guarded.server._take(words, 0.0)
    assert "with another key" in guarded.refusals[0]
    assert len(guarded.heard) == 1
    guarded.server._user = load_worker_key(guarded.key()).public
    guarded.server._take(words, 0.0)
    assert len(guarded.heard) == 2
    await link.aclose()


async def test_noise_on_the_port_is_refused_once_and_disturbs_nobody(guarded: Guarded) -> None:
    link = await guarded.attach(guarded.key())
    host, _, port = guarded.server.endpoint.removeprefix("tcp://").rpartition(":")

    def knock(words: bytes) -> None:
        with suppress(OSError), socket.create_connection((host, int(port))) as raw:
            raw.sendall(words)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass

    speeches = [b"GET / HTTP/1.1\r\n\r\n" * 4, b"\x01\x00\x00\x00\x01\x7e", os.urandom(200), b""]
    for _ in range(3):
        for words in speeches:
            await asyncio.to_thread(knock, words)
    link.send(Ready(1, 0, 0))
    assert await link.flush(LIMIT_S)
    assert [type(message) for _, message in guarded.heard] == [Attach, Ready]
    assert guarded.faults == []
    assert len(guarded.refusals) <= 4  # of 12: each kind at the 1st and 10th time
    await link.aclose()


async def test_malformed_words_of_an_admitted_key_end_that_worker_alone(guarded: Guarded) -> None:
    good = await guarded.attach(guarded.key())
    told: list[Message] = []
    bad = Connection(
        guarded.server.endpoint,
        on_message=lambda message, _: (told.append(message), guarded._news.set()),
        on_fault=lambda _: None,
        key=load_worker_key(guarded.key("node2", "rollout")),
    )
    bad.start()
    bad.send(Attach("rollout", "node2", 1, "here"))
    await guarded.until(lambda: told)
    bad._socket.send_multipart([b"\x93garbage"])
    await guarded.until(lambda: len(told) == 2)
    assert isinstance(told[1], Close)
    assert told[1].is_fault
    assert len(guarded.faults) == 1
    good.send(Ready(1, 0, 0))
    assert await good.flush(LIMIT_S)
    bad.close()
    await good.aclose()


def test_a_door_answers_only_what_it_was_asked_in_full() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    heard: list[str] = []
    door = CurveAuthenticator(context, admits=lambda public: True, on_refusal=heard.append)
    good = [b"1.0", b"7", DOMAIN, b"10.0.0.1", b"", b"CURVE", bytes(32)]
    assert door._answer(good)[:3] == [b"1.0", b"7", b"200"]
    for place, value in ((0, b"2.0"), (2, b"other"), (5, b"NULL"), (6, bytes(31))):
        assert door._answer([*good[:place], value, *good[place + 1 :]])[2] == b"400"
    for cut in range(7):
        assert door._answer(good[:cut])[2] == b"400"
    door.close()
    context.term()


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    path = make_keys(tmp_path / "keys", "node1", ("rollout",))
    assert path is not None
    secrets = [path, tmp_path / "keys" / "server.key"]
    assert [file.stat().st_mode & 0o777 for file in secrets] == [0o600, 0o600]
    key = load_worker_key(path)
    assert key.secret not in (tmp_path / "keys" / "workers" / "node1.json").read_text()
    assert Keyring(tmp_path / "keys").grant(key.public).roles == ("rollout",)  # type: ignore[union-attr]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        load_worker_key(path)


@pytest.mark.parametrize("name", ["rollout-0", "trainer", "local", "../x", "", "a/b", "x" * 65])
def test_a_key_is_not_named_like_the_runs_own_processes(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        make_keys(tmp_path, name, ("rollout",))


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path, "node1")
    before = (tmp_path / "node1.key").read_text()
    with pytest.raises(ConfigError, match="is there already"):
        make_keys(tmp_path, "node1")
    assert (tmp_path / "node1.key").read_text() == before


def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "x.key"
    path.write_text('{"name": "x", "secret": "hush"}')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is not a worker key") as caught:
        load_worker_key(path)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_worker_key(tmp_path / "none.key")
    with pytest.raises(ConfigError, match="Make keys first"):
        Keyring(tmp_path)
    with pytest.raises(ConfigError, match="holds no keys, so no key was revoked"):
        revoke(tmp_path, "node9")


def test_a_grant_under_another_files_name_is_ignored(tmp_path: Path) -> None:
    path = make_keys(tmp_path, "node1", ("rollout",))
    grants = tmp_path / "workers"
    (grants / "rollout-0.json").write_bytes((grants / "node1.json").read_bytes())
    (grants / "node1.json").unlink()
    (grants / "junk.json").write_text("{")
    key: WorkerKey = load_worker_key(str(path))
    assert Keyring(tmp_path).grant(key.public) is None


@pytest.mark.parametrize("behind_s", [100, 0, -100], ids=["behind", "alike", "ahead"])
def test_a_key_is_revoked_whatever_the_clock_of_the_file_server_says(tmp_path: Path, behind_s: int) -> None:
    grants, tick_s = tmp_path / "workers", int(time.time()) - behind_s  # its times are whole seconds
    key = load_worker_key(str(make_keys(tmp_path, "node1", ("rollout",))))
    os.utime(grants, (tick_s, tick_s))
    keys = Keyring(tmp_path)
    assert keys.grant(key.public) is not None
    revoke(tmp_path, "node1")
    os.utime(grants, (tick_s, tick_s))
    assert keys.grant(key.public) is None


@pytest.mark.parametrize("behind_s", [10**6, 100, 0, -100])
def test_a_folder_that_stays_as_it_is_is_not_read_for_ever(
    tmp_path: Path, monkeypatch, behind_s: int
) -> None:
    make_keys(tmp_path, "node1", ("rollout",))
    at_s, now_ns = time.time() - behind_s, time.monotonic_ns()
    os.utime(tmp_path / "workers", (at_s, at_s))
    keys = Keyring(tmp_path)
    assert keys.refresh()
    assert keys.refresh() == (behind_s < 10**6), "one that was changed long ago is read once"
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 10 * 10**9)
    keys.refresh()
    assert not keys.refresh()
