"""A run that this command cannot go on with is answered with the ways that are left."""

import sys
from pathlib import Path

import pytest

from controller.config.load import change_config
from controller.host.resume import read_past
from protocol.errors import ConfigError, RunError
from tests.unit.controller.answered_run import AnsweredRun

FIRST = "def decide(view, batches):\n    return 4 - view.generating\n"
OTHER = "def decide(view, batches):\n    return 2 - view.generating\n"


def half(path: Path, **staleness: object):
    run = AnsweredRun(path / "run.db", steps=5, **staleness)
    run.to_the_end(max_events=60)
    return run.config


def checkpoints(path: Path, *steps: int, adapter: bool = False) -> None:
    for step in steps:
        place = path / "checkpoints" / f"step_{step}"
        (place / "trainer").mkdir(parents=True)
        (place / ("adapter_config.json" if adapter else "config.json")).write_text("{}")


@pytest.mark.parametrize("adapter", [False, True])
def test_other_settings_are_refused_with_the_newest_checkpoint_as_a_way_on(tmp_path, adapter):
    config = half(tmp_path)
    checkpoints(tmp_path, 9, 20, 100, adapter=adapter)
    with pytest.raises(ConfigError, match="set the run aside") as raised:
        read_past(tmp_path, change_config(config, ["trainer.algorithm=gspo"]))
    begins = f"run.resume={tmp_path}/checkpoints/step_100 and another run.name"
    assert (begins in str(raised.value)) is not adapter


def test_a_strategy_that_decides_otherwise_than_it_did_is_refused_with_the_way_on(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FIRST)
    config = half(tmp_path, admission=f"{file}:decide")
    checkpoints(tmp_path, 3)
    for code in (FIRST, FIRST.replace("4 -", "2 * 2 -")):
        mend(file, code)
        assert read_past(tmp_path, config) is not None
    mend(file, OTHER)
    with pytest.raises(RunError, match=r"a strategy of yours has changed.*checkpoints/step_3 and another"):
        read_past(tmp_path, config)


def mend(file: Path, code: str) -> None:
    """As between two commands, each of which is a process."""
    file.write_text(code)
    for name in [
        name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(file)
    ]:
        del sys.modules[name]
