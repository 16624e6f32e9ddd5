"""What one machine has differently from the run."""

import pytest

from controller.config.models import Config
from controller.core.worker_settings import worker_settings
from workers.host.find_model import model_directory
from workers.host.overrides import Overrides


@pytest.mark.parametrize("factory", [None, "task.py:make_model"])
@pytest.mark.parametrize(("said", "place"), [("~/one", "home/one"), ("two", "here/two")])
def test_the_model_of_this_machine_is_looked_for_where_its_user_says(
    tmp_path, monkeypatch, factory, said, place
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = Config.model_validate({"model": {"factory": factory}})
    adapt = Overrides("trainer", [f"model.path={said}"])
    settings = worker_settings(config, str(tmp_path / "run"), ())
    assert model_directory(adapt(settings)) == str(tmp_path / place)
