"""Lengths out of a journal."""

import pytest

from controller.config.models import Config
from controller.core.events import Received
from controller.durability.store import Store
from controller.simulation import Simulation, window
from controller.simulation.traces import read_lengths
from protocol.errors import ConfigError
from protocol.messages import Delta, Generated


@pytest.fixture
def journal(tmp_path):
    store = Store(tmp_path / "run.db")
    said = [
        Delta(1, 0, 1, 0, 5, 0, ""), Delta(1, 0, 1, 5, 7, 0, "stop"),  # 12
        Delta(1, 1, 1, 0, 4, 0, "interrupt"), Delta(1, 1, 2, 0, 6, 1, "length"),  # 10
        Delta(1, 1, 1, 4, 9, 0, "stop"),  # late
        Delta(2, 0, 1, 0, 3, 1, ""),  # never ends
        Delta(3, 0, 1, 0, 8, 0, "stop"), Delta(3, 0, 2, 0, 2, 0, "interrupt"),
        Delta(3, 0, 3, 0, 9, 1, "stop"), Delta(3, 0, 3, 0, 9, 1, "stop"),  # two turns of an agent, 8 and 11
    ]  # fmt: skip
    with store.transaction():
        for i, delta in enumerate(said):
            store.append_events(float(i), [(Received("a" * 32, Generated.of((delta,))), False)])
    store.close()
    return tmp_path


def test_finished_responses_and_turns_are_counted_over_their_attempts(journal):
    assert read_lengths(str(journal)) == [12, 10, 8, 11]
    assert read_lengths(str(journal / "run.db")) == [12, 10, 8, 11]


def test_a_simulation_can_draw_from_a_trace(journal):
    config = Config.model_validate(
        {"run": {"steps": 6}, "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 50},
         "trainer": {"batch_groups": 4},
         "simulation": {"workload": {"kind": "trace", "trace": str(journal)}}}
    )  # fmt: skip
    figures = window(Simulation(config, seed=1).run().starts, max_staleness=2, skip=0)
    assert figures is not None
    assert 8 < figures.mean_tokens < 12


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no run\.db"):
        read_lengths(str(tmp_path))
