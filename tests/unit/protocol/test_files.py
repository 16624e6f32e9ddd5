"""What is read is a plain file; file and folder are synced; no descriptor stays; what is there is seen."""

import errno
import os

import pytest

from protocol.files import exists, is_dir, is_file, plain_only, sync


def test_a_file_and_its_folder_are_synced_and_let_go(tmp_path, monkeypatch):
    synced, whole = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda one: (synced.append(os.readlink(f"/proc/self/fd/{one}")), whole(one))
    )
    (tmp_path / "file").write_text("x")
    before = os.listdir("/proc/self/fd")
    sync(tmp_path / "file")
    sync(tmp_path)
    assert synced == [str(tmp_path / "file"), str(tmp_path)]
    assert os.listdir("/proc/self/fd") == before


def test_what_is_not_there_cannot_be_synced(tmp_path):
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "gone")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_only_a_plain_file_is_read(tmp_path, make):
    make(tmp_path / "run.txt")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="it is a pipe or a device, and no file"):
        open(tmp_path / "run.txt", opener=plain_only).close()
    with pytest.raises(IsADirectoryError):
        open(tmp_path, opener=plain_only).close()
    assert os.listdir("/proc/self/fd") == before
    (tmp_path / "plain").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    with open(tmp_path / "link", opener=plain_only) as file:
        assert file.read() == "x"


def test_what_is_there_is_told_apart(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    there = [(is_file(one), is_dir(one), exists(one)) for one in (tmp_path / "file", tmp_path)]
    assert there == [(True, False, True), (False, True, True)]
    for gone in ("gone", "link", "round", "file/inside", "\0"):
        assert not any(ask(tmp_path / gone) for ask in (exists, is_file, is_dir)), gone


@pytest.mark.parametrize("ask", [exists, is_file, is_dir])
def test_a_disk_that_does_not_answer_is_no_place_where_nothing_is(ask, tmp_path, monkeypatch):
    with pytest.raises(OSError, match="File name too long"):
        ask(tmp_path / ("x" * 300))

    def stale(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        ask(tmp_path)
