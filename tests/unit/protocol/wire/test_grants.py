"""A folder of keys that cannot be read for a moment revokes nobody; one that stays away admits nobody."""

import errno
import os
import time
from pathlib import Path

import pytest

from protocol.wire.grants import AWAY_S, UNREAD_S
from protocol.wire.security import Keyring, load_worker_key, make_keys, revoke
from protocol.wire.server import Server


class Folder:
    """Keys of two machines, and a clock that stands until it is moved."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.workers = path, path / "workers"
        self.public = [load_worker_key(make_keys(path, name, ("rollout",))).public for name in ("a", "b")]
        self._now_ns, self._patch = time.monotonic_ns(), monkeypatch
        monkeypatch.setattr(time, "monotonic_ns", lambda: self._now_ns)
        self.keys = Keyring(path)
        assert self.admitted() == [True, True]

    def wait(self, seconds: float) -> None:
        self._now_ns += int(seconds * 1e9)

    def admitted(self) -> list[bool]:
        return [self.keys.grant(public) is not None for public in self.public]

    def fail(self, code: int, *, at: Path, call: str) -> None:
        """Have a call fail on one path, as a file system does; the real one for all others."""
        owner, real = (os, os.listdir) if call == "listdir" else (Path, getattr(Path, call))

        def failing(path, *args, **options):
            if Path(path) == at:
                raise OSError(code, os.strerror(code), str(at))
            return real(path, *args, **options)

        self._patch.setattr(owner, call, failing)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path / "keys", monkeypatch)


@pytest.mark.parametrize("call", ["stat", "listdir"])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_folder_that_cannot_be_read_keeps_whom_it_admitted_for_a_while(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    with monkeypatch.context() as patched:
        folder._patch = patched
        folder.fail(code, at=folder.workers, call=call)
        if call == "listdir":
            folder.keys.folder._changed_ns = 0
        for _ in range(2):
            assert folder.admitted() == [True, True]
            assert f"{folder.workers} cannot be read" in folder.keys.folder.problem
            folder.wait(UNREAD_S / 2 - 1)
        folder.wait(2)
        assert folder.admitted() == [False, False]
        assert "not been readable for 300 s" in folder.keys.folder.lost
    assert folder.admitted() == [True, True]
    assert folder.keys.folder.problem == folder.keys.folder.lost == ""


def test_a_folder_that_is_away_counts_when_it_stays_away(folder: Folder) -> None:
    away = folder.path / "away"
    for _ in range(2):  # each time anew
        folder.workers.rename(away)
        assert folder.admitted() == [True, True]
        folder.wait(AWAY_S - 1)
        assert folder.admitted() == [True, True]
        away.rename(folder.workers)
        assert folder.admitted() == [True, True]
    folder.workers.rename(away)
    assert folder.admitted() == [True, True]
    folder.wait(AWAY_S)
    assert folder.admitted() == [False, False]


def test_a_key_that_was_revoked_while_the_folder_was_away_is_revoked(folder: Folder) -> None:
    changed_ns = folder.workers.stat().st_mtime_ns
    folder.wait(10)
    folder.keys.refresh()
    folder.workers.rename(folder.path / "away")
    folder.keys.refresh()
    (folder.path / "away" / "a.json").unlink()
    (folder.path / "away").rename(folder.workers)
    os.utime(folder.workers, ns=(changed_ns, changed_ns))
    assert folder.admitted() == [False, True]


def test_one_file_that_cannot_be_read_keeps_its_key_and_delays_no_other(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        folder._patch = patched
        folder.fail(errno.ESTALE, at=folder.workers / "a.json", call="read_bytes")
        revoke(folder.path, "b")
        assert folder.admitted() == [True, False]
        assert "a.json cannot be read" in folder.keys.folder.problem
        folder.wait(UNREAD_S + 1)
        assert folder.admitted() == [False, False]
    assert folder.admitted() == [True, False]


async def test_it_is_said_once_and_an_open_session_outlives_it(folder: Folder) -> None:
    said, faults = [], []
    server = Server(
        "tcp://127.0.0.1:*", keys=folder.keys, on_message=lambda *_: None, on_refusal=said.append,
        on_fault=lambda peer, reason: faults.append(reason),
    )  # fmt: skip
    server.start()
    try:
        server._user = folder.public[0]
        server._make_peer(b"\x01" * 15, "rollout")
        away = folder.workers.rename(folder.path / "away")
        for wait_s in (0, 1, 2):
            folder.wait(wait_s)
            server._review()
        assert [str(folder.workers) in text for text in said] == [True]
        away.rename(folder.workers)
        server._review()
        assert len(server._peers) == 1
        folder.workers.rename(away)
        server._review()
        folder.wait(AWAY_S)
        server._review()
        server._after_drain()
        assert faults == [f"The keys in {folder.workers} have not been readable for 10 s."]
    finally:
        server.close()


async def test_a_session_is_closed_though_another_look_has_seen_the_change_first(folder: Folder) -> None:
    """As when a connection is made between the revocation and the next review of the sessions."""
    faults = []
    server = Server(
        "tcp://127.0.0.1:*", keys=folder.keys, on_message=lambda *_: None,
        on_fault=lambda peer, reason: faults.append(reason),
    )  # fmt: skip
    server.start()
    try:
        server._user = folder.public[0]
        server._make_peer(b"\x01" * 15, "rollout")
        revoke(folder.path, "a")
        long_ago = time.time() - 10**6  # by the clock of its file server: such a folder is read once
        os.utime(folder.workers, (long_ago, long_ago))
        assert folder.admitted() == [False, True]
        server._review()
        server._after_drain()
        assert faults == ["Its key was revoked."]
    finally:
        server.close()
