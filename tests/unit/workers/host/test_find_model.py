"""Where a worker finds the model, or what it does without one."""

import pytest

from protocol.messages import FetchModel, ModelFiles, Take
from protocol.model_files import digest_of
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.host.find_model import find_model


class Controller:
    """A controller without a model, which hands over the shared device at once; in place of the link."""

    def __init__(self):
        self.heard = []
        self.inbox = [Take(), ModelFiles((), digest_of({}))]

    def send(self, message):
        self.heard.append(message)

    async def receive(self):
        return self.inbox.pop(0), ()


def settings(folder, **options):
    return WorkerSettings(
        run_dir=str(folder), seed=0, steps=1, model=ModelSettings(path=str(folder / "gone")),
        rollout=RolloutSettings(), reward=RewardSettings(), trainer=TrainerSettings(), **options,
    )  # fmt: skip


@pytest.mark.parametrize("role", ["rollout", "trainer"])
async def test_a_worker_of_a_shared_device_asks_for_no_files(tmp_path, role):
    controller = Controller()
    found = await find_model(settings(tmp_path, is_colocated=True), controller, role)
    assert found == str(tmp_path / "gone")
    assert controller.heard == []
    assert isinstance(controller.inbox[0], Take)


@pytest.mark.parametrize(
    ("role", "is_colocated"), [("trainer", False), ("reward", False), ("reward", True), ("agent", True)]
)
async def test_another_worker_asks_the_controller(tmp_path, role, is_colocated):
    controller = Controller()
    controller.inbox.pop(0)
    found = await find_model(settings(tmp_path, is_colocated=is_colocated), controller, role)
    assert found == str(tmp_path / "gone")
    assert controller.heard == [FetchModel()]
