"""A trainer whose run directory is a folder of its own host, not the controller's, saves nothing there."""

import threading

import pytest

from controller.config.models import Config
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError
from protocol.messages import Ready
from tests.unit.workers.trainer.publishing.test_copies import TrainerLink
from tests.unit.workers.trainer.test_trainer import (  # noqa: F401 - fixtures
    model_directory,
    settings,
)
from workers.trainer import checkpoints
from workers.trainer.worker import TrainerWorker


class Heard(TrainerLink):
    """A link that drains a worker which says that it is ready."""

    def __init__(self, worker):
        super().__init__()
        self._worker = worker

    def send(self, message, *frames):
        super().send(message, *frames)
        if isinstance(message, Ready):
            self._worker.drain()


def at(settings, place):  # noqa: F811
    return settings().model_copy(update={"run_dir": str(place)})


async def test_it_ends_in_words_before_it_makes_anything(settings, model_directory, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(checkpoints, "SEEN_S", 0.0)
    place = tmp_path / "runs" / "mine"
    worker = TrainerWorker(at(settings, place), str(model_directory))
    with pytest.raises(ConfigError) as refused:
        await worker.run(Heard(worker))
    said = str(refused.value)
    assert f"There is no {place / 'config.yaml'}, which the controller has written" in said
    assert "Expected a file system that controller and trainer share" in said
    assert "set run.dir" in said
    assert not place.parent.exists()


async def test_one_that_sees_the_controllers_is_ready(settings, model_directory, tmp_path):  # noqa: F811
    config = Config.model_validate({"run": {"dir": str(tmp_path), "name": "mine"}})
    directory = RunDirectory(config)
    worker = TrainerWorker(at(settings, directory.path), str(model_directory))
    link = Heard(worker)
    await worker.run(link)
    assert (await link.hear(Ready))[0].policy_version == 0
    directory.close()


def test_a_network_file_system_may_show_it_late(tmp_path, caplog):
    def show(record):
        threading.Thread(target=(tmp_path / "config.yaml").touch).start()
        return True

    checkpoints.log.addFilter(show)
    try:
        checkpoints.require_run_directory(tmp_path)
    finally:
        checkpoints.log.removeFilter(show)
    assert "is not to be seen; it is looked for for 60 s" in caplog.text
