"""The trainer's side of publishing: what a trainer that was started again makes of what is there."""

from pathlib import Path

import pytest
import torch

from protocol import segments
from protocol.errors import WeightsError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
from workers.trainer.publishing import publisher as publisher_module
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.ranks import Ranks
from workers.weights.tensors import read

TENSORS = {"w": torch.arange(6.0)}


@pytest.fixture
def make(tmp_path):
    settings = WorkerSettings(
        run_dir=str(tmp_path / "run"), seed=0, steps=1, model=ModelSettings(dtype="float32"),
        rollout=RolloutSettings(), reward=RewardSettings(), trainer=TrainerSettings(),
        weights=WeightsSettings(directory=str(tmp_path)),
    )  # fmt: skip
    return lambda: Publisher(settings, Ranks(torch.device("cpu")), TENSORS)


@pytest.fixture
def make_by_itself(tmp_path, monkeypatch):
    """With `weights.directory: auto`, beside a controller, which has made the folder in shared memory."""
    monkeypatch.setattr(segments, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    settings = WorkerSettings(
        run_dir=str(tmp_path / "run"), seed=0, steps=1, model=ModelSettings(dtype="float32"),
        rollout=RolloutSettings(), reward=RewardSettings(), trainer=TrainerSettings(),
        weights=WeightsSettings(),
    )  # fmt: skip
    shared = segments.segment_directory(settings.run_dir, host=segments.this_host())
    with segments.hold(shared):

        def make(has_room):
            monkeypatch.setattr(publisher_module, "has_room", lambda size_bytes: has_room)
            return Publisher(settings, Ranks(torch.device("cpu")), TENSORS)

        yield make, shared, tmp_path / "run" / "weights"


def test_versions_go_to_the_run_directory_where_shared_memory_has_no_room_for_four(make_by_itself):
    """As in a container, which has 64 MB of it: a run failed at its first version."""
    make, shared, own = make_by_itself
    for has_room, directory in ((True, shared), (False, own)):
        publisher = make(has_room)
        assert publisher.directory == directory
        publisher.close()


@pytest.mark.parametrize("had_room", [True, False])
def test_a_trainer_started_again_goes_on_where_its_versions_are(make_by_itself, had_room):
    make, *_ = make_by_itself
    before = make(had_room)
    published = publish(before, 3)
    before.close()
    after = make(not had_room)
    assert after.directory == before.directory
    assert after.survivors(after=2) == [(3, published)]
    after.close()


def publish(publisher, version):
    return publisher.seal(publisher.write(version, TENSORS))


def test_a_trainer_started_again_frees_what_is_older_and_announces_what_is_newer(make):
    before = make()
    old, same, *newer = [publish(before, version) for version in (1, 2, 3, 10)]
    before.close()
    after = make()
    assert after.survivors(after=2) == list(zip((3, 10), newer, strict=True))
    with pytest.raises(WeightsError, match="the version was retired"):
        read(old.location, old.digest)
    assert after.write(2, TENSORS) == same  # it is there: readers may have it
    after.close()


def test_the_first_version_is_that_of_this_run_and_not_of_an_older_one_of_its_name(make):
    """The host of a trainer keeps it where the controller, on another host, begins the run anew."""
    before = make()
    of_older_run = publish(before, 0)
    before.close()
    after = make()
    assert after.survivors(after=0) == []
    changed = {"w": TENSORS["w"] + 1}
    published = after.seal(after.write(0, changed))
    assert torch.equal(read(published.location, published.digest)["w"], changed["w"])
    assert published.digest != of_older_run.digest
    again = make()  # of the same run, which makes the same of it
    assert again.seal(again.write(0, changed)) == published
    for publisher in (after, again):
        publisher.close()


def test_a_version_that_is_not_whole_does_not_survive(make):
    before = make()
    whole, torn = publish(before, 3), publish(before, 4)
    before.close()
    path = Path(torn.location)
    path.write_bytes(path.read_bytes()[:-1])
    after = make()
    assert after.survivors(after=0) == [(3, whole)]
    assert not path.exists()
    after.close()
