"""What is beside the configuration is found there: trackers and programs of the user's own."""

from controller.config.models import Config
from controller.config.places import with_absolute_paths


def test_a_tracker_and_a_program_to_notify_are_found_beside_the_configuration(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "tell.sh").touch()
    config = Config.model_validate(
        {
            "logging": {"trackers": ["wandb", "mine.py:make", "pkg.mod:make", "gone.py:make"]},
            "notify": {"command": ["sh", "tell.sh", "gone.sh"]},
        },
        strict=False,
    )
    found = with_absolute_paths(config, tmp_path)
    assert found.logging.trackers == ("wandb", f"{tmp_path}/mine.py:make", "pkg.mod:make", "gone.py:make")
    assert found.notify.command == ("sh", f"{tmp_path}/tell.sh", "gone.sh")


def test_a_name_that_no_file_can_have_is_left_for_check_to_name(tmp_path):
    name = "a" * 300
    tree = {
        "agent": {"function": f"{name}.py:run"},
        "data": {"path": name},
        "model": {"path": name},
        "notify": {"command": [f"{name}.sh"]},
    }
    found = with_absolute_paths(Config.model_validate(tree, strict=False), tmp_path)
    assert (found.agent.function, found.data.path, found.model.path) == (f"{name}.py:run", name, name)
    assert found.notify.command == (f"{name}.sh",)
