"""A folder of keys is its owner's alone, and a key is made with both its files or not at all."""

import os
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.wire import security
from protocol.wire.security import Keyring, load_worker_key, make_keys, revoke

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: run it as root")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def files(keys: Path) -> list[str]:
    return sorted(str(path.relative_to(keys)) for path in keys.rglob("*") if path.is_file())


@pytest.mark.parametrize("wide", [0o777, 0o2775, 0o755])
def test_folders_that_were_there_become_the_owners_alone(keys: Path, wide: int) -> None:
    keys.mkdir()
    keys.chmod(wide)
    make_keys(keys, "node1")
    (keys / "workers").chmod(wide)
    keys.chmod(wide)
    make_keys(keys, "node2")
    assert {mode(folder) & 0o777 for folder in (keys, keys / "workers")} == {0o700}
    Keyring(keys)


def test_a_folder_that_others_share_is_not_shut_for_keys(keys: Path) -> None:
    keys.mkdir(mode=0o755)
    (keys / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds other files.*chmod 700"):
        make_keys(keys, "node1")
    assert (mode(keys), files(keys)) == (0o755, ["notes.txt"])
    keys.chmod(0o700)
    make_keys(keys, "node1")


@pytest.mark.parametrize("which", [".", "workers", ".."])
def test_a_controller_takes_no_folder_to_which_others_may_write(keys: Path, which: str) -> None:
    (keys.parent / "deep").mkdir()
    keys = keys.parent / "deep" / "keys"
    key = load_worker_key(make_keys(keys, "node1"))
    Keyring(keys)
    (keys / which).chmod(0o777)
    with pytest.raises(ConfigError, match=r"Others may write to .* \(mode 777\)"):
        Keyring(keys)
    if which == "..":
        with pytest.raises(ConfigError, match="Others may write to"):
            make_keys(keys, "node2")
    (keys / which).chmod(0o755)
    assert Keyring(keys).grant(key.public) is not None


def test_the_folder_of_a_mounted_secret_is_taken(keys: Path, tmp_path: Path) -> None:
    """As Kubernetes mounts it: all are links into a folder of a date, under one with the sticky bit."""
    made = tmp_path / "made"
    public = load_worker_key(make_keys(made, "node1")).public
    dated = keys / "..2026_01_01"
    (dated / "workers").mkdir(parents=True)
    for name in ("server.key", "workers/node1.json"):
        (dated / name).write_bytes((made / name).read_bytes())
        (dated / name).chmod(0o400)
    for folder, wide in ((dated, 0o755), (dated / "workers", 0o755), (keys, 0o1777)):
        folder.chmod(wide)
    (keys / "..data").symlink_to(dated.name)
    for name in ("server.key", "workers"):
        (keys / name).symlink_to(f"..data/{name}")
    assert Keyring(keys).grant(public) is not None
    (keys / "workers").unlink()  # the Secret of those that are admitted was taken away
    assert Keyring(keys).grant(public) is None


@as_root
@pytest.mark.parametrize("which", ["workers", "server.key", "."])
def test_a_part_of_another_user_is_refused(keys: Path, which: str) -> None:
    make_keys(keys, "node1")
    os.chown(keys / which, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=r"belongs to another user \(id 65534\)"):
        Keyring(keys)
    for path in (keys, keys / "workers", keys / "server.key"):  # as a container mounts its user's folder
        os.chown(path, NOBODY, NOBODY)
    Keyring(keys)


def test_a_name_that_is_taken_leaves_nothing_behind_and_is_named(keys: Path, tmp_path: Path) -> None:
    make_keys(keys, "node1")
    (keys / "node1.key").rename(tmp_path / "moved.key")  # to its machine, as the documentation says
    before = files(keys)
    with pytest.raises(ConfigError, match=r"workers/node1\.json is there already.*revoke .*keys node1"):
        make_keys(keys, "node1")
    assert files(keys) == before
    revoke(keys, "node1")
    assert Keyring(keys).grant(load_worker_key(make_keys(keys, "node1")).public) is not None


def test_a_key_without_a_grant_can_be_revoked_and_made_anew(keys: Path) -> None:
    make_keys(keys, "node1")
    (keys / "workers" / "node1.json").unlink()
    with pytest.raises(ConfigError, match=r"keys/node1\.key is there already"):
        make_keys(keys, "node1")
    revoke(keys, "node1")
    assert files(keys) == ["server.key"]
    make_keys(keys, "node1")


def test_a_grant_that_cannot_be_written_takes_its_key_back(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(keys)
    real = security._write_new

    def full(path, content):
        if path.suffix == ".json":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(security, "_write_new", full)
    with pytest.raises(ConfigError, match="No space left"):
        make_keys(keys, "node1")
    assert files(keys) == ["server.key"]


def test_revoking_never_takes_the_controllers_own_key(keys: Path) -> None:
    make_keys(keys)
    with pytest.raises(ConfigError, match="admits no key named 'server'"):
        revoke(keys, "server")
    (keys / "workers" / "server.json").touch()
    with pytest.raises(ConfigError, match="admits no key named 'server'"):
        revoke(keys, "server")
    assert (keys / "server.key").exists()
