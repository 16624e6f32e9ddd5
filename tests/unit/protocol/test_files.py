"""A file and a folder are synced, and no descriptor stays."""

import os

import pytest

from protocol.files import sync


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
