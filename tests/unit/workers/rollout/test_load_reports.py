"""What a rollout worker says of its engine's load."""

from dataclasses import fields

from protocol.messages import InstanceStatus
from protocol.settings import WorkerSettings
from workers.engines.interface import EngineLoad
from workers.rollout.worker import RolloutWorker

SETTINGS = WorkerSettings.model_validate(
    {"run_dir": "", "seed": 0, "steps": 1, "model": {}, "reward": {}, "trainer": {}, "rollout": {}}
)


class Engine:
    policy_version = 3

    def load(self):
        """Another value in each field."""
        numbers = {one.name: 10 + place for place, one in enumerate(fields(EngineLoad))}
        return EngineLoad(**numbers | {"queued": ((1, 2, 3),)})


class Told(list):
    def send(self, message, *frames):
        self.append(message)


def test_each_figure_of_an_engine_has_its_field_in_the_report():
    figures = [one.name for one in fields(EngineLoad)]
    said = [one.name for one in fields(InstanceStatus)]
    assert sorted([*figures, "sequence", "policy_version"]) == sorted(said), (
        "a figure of an engine is a field of EngineLoad (workers/engines/interface.py) and, of one name, of "
        "InstanceStatus (protocol/messages/from_workers.py)"
    )


def test_a_report_has_every_figure_under_its_own_name():
    worker = RolloutWorker(SETTINGS, "nowhere")
    worker._link, worker._engine = (told := Told()), Engine()
    worker._report_status()
    worker._report_status()
    first, second = told
    assert (first.sequence, second.sequence, first.policy_version) == (1, 2, 3)
    for one in fields(EngineLoad):
        assert getattr(first, one.name) == getattr(Engine().load(), one.name)
