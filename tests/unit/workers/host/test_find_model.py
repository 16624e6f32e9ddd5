"""Where a worker finds the model, or what it does without one."""

import logging

import pytest

from protocol.messages import FetchModel, ModelFiles, Take
from protocol.model_files import digest_of
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.host.find_model import find_model


class Controller:
    """A controller, which hands over the shared device at once; in place of the link.

    `files`: small files of its model.
    """

    def __init__(self, files=None, settings=None):
        self.heard = []
        self.settings, self.files = settings, files or {}
        self.inbox = [Take(), ModelFiles(tuple(self.files), digest_of(self.files))]

    def send(self, message):
        self.heard.append(message)

    async def receive(self):
        return self.inbox.pop(0), tuple(self.files.values())


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


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_path_that_was_given_to_this_worker_and_holds_no_model_is_warned_of(
    tmp_path, monkeypatch, caplog, is_own
):
    monkeypatch.setattr("workers.host.find_model.keep_model_files", lambda *files: tmp_path / "kept")
    caplog.set_level(logging.INFO)
    own = settings(tmp_path)
    run = settings(tmp_path / "run")
    controller = Controller({"config.json": b"{}"}, run if is_own else own)
    controller.inbox.pop(0)
    assert await find_model(own, controller, "rollout") == str(tmp_path / "kept")
    (record,) = caplog.records
    assert record.levelname == ("WARNING" if is_own else "INFO")
    assert (f"model.path={tmp_path / 'gone'}, which was given to this worker" in record.message) == is_own
