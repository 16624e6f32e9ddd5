"""The trainer's side of publishing: what a trainer that was started again makes of what is there."""

from pathlib import Path

import pytest
import torch

from protocol.errors import WeightsError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
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
