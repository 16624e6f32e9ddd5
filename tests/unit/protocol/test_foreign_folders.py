"""Another user of the machine cannot have a run write, read or remove anything by what he puts in its way."""

import os

import pytest

from protocol.errors import ConfigError
from protocol.segments import hold, remove, segment_directory, sweep
from workers.weights.manifest import lay_out
from workers.weights.store import PARTIAL, VersionStore

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user's")


@pytest.fixture
def directory(tmp_path):
    """Where a run's versions go, which everybody can work out; the folder above is as /dev/shm is."""
    tmp_path.chmod(0o1777)
    return segment_directory("run", host="h", base=str(tmp_path))


@pytest.fixture
def victim(tmp_path):
    """A file of the run's owner."""
    file = tmp_path / "thesis.tex"
    file.write_text("all of it")
    return file


def _version(policy_version):
    return lay_out(policy_version, {"weight": ("F32", (4,))})


@AS_ROOT
def test_a_folder_that_another_user_made_is_refused_and_nothing_in_it_touched(directory, victim):
    directory.mkdir(mode=0o777)
    (directory / f"v4{PARTIAL}").symlink_to(victim)
    (directory / "lock").symlink_to(victim.with_name("made.by.following"))
    os.chown(directory, NOBODY, NOBODY)
    for take in (hold, VersionStore):
        with pytest.raises(
            ConfigError, match="a folder of the user with id 65534; expected a folder of yours"
        ):
            take(directory)
    sweep(str(directory.parent))
    remove(directory, even_if_held=True)
    assert victim.read_text() == "all of it"
    assert not victim.with_name("made.by.following").exists()
    assert directory.exists()


def test_a_folder_that_others_may_write_to_is_refused(directory):
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(ConfigError, match=r"has mode 777; expected 700.*chmod 700"):
        hold(directory)


def test_a_link_in_place_of_the_folder_is_refused(directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="is a link of the user"):
        hold(directory)
    assert not list(elsewhere.iterdir())


def test_a_base_in_which_everybody_may_rename_is_refused(directory):
    directory.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="Every user of this machine may rename what lies in"):
        hold(directory)


def test_no_link_is_followed_within_the_folder(directory, victim):
    store = VersionStore(directory)
    (directory / f"v4{PARTIAL}").symlink_to(victim)
    (directory / "v3.safetensors").symlink_to(victim)
    segment = store.begin(_version(4))
    assert store.find(3) is None
    store.discard(segment)
    store.retire(3)
    store.close()
    assert victim.read_text() == "all of it"


def test_a_lock_that_is_a_link_is_not_followed(directory, victim):
    directory.mkdir(mode=0o700)
    (directory / "lock").symlink_to(victim.with_name("made.by.following"))
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        hold(directory)
    assert not victim.with_name("made.by.following").exists()
