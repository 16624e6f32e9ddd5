"""Tasks of a taskset as rows, with a taskset in place of one of verifiers."""

import json
from itertools import count

import pytest

from controller.config.data import DataSettings
from controller.config.models import Config
from controller.config.places import with_absolute_paths
from controller.data import taskset_rows
from controller.data.formats import format_of
from controller.data.prompts import PromptSource
from protocol.agents.tasksets import FoundTaskset
from protocol.errors import ConfigError


class Data:
    def __init__(self, number):
        self.number = number

    def model_dump(self, *, mode, exclude_defaults):
        assert (mode, exclude_defaults) == ("json", True)
        return {"idx": self.number, "prompt": f"{self.number}+1=", "answer": str(self.number + 1)}


class Task:
    def __init__(self, number):
        self.data = Data(number)


class Tasks:
    bounded = True

    def __init__(self, options):
        self.size = options.pop("size", 5)
        assert not options
        if self.size == 0:
            self.bounded = False

    def __iter__(self):
        if self.size == 13:
            raise RuntimeError("unlucky")
        return iter([Task(number) for number in range(self.size)] if self.size else map(Task, count()))


@pytest.fixture(autouse=True)
def _verifiers(monkeypatch):
    monkeypatch.setattr(
        taskset_rows, "find_taskset", lambda name, options: FoundTaskset(Tasks(dict(options)), None, name)
    )


def rows(path, **settings):
    source = PromptSource(Config(data=DataSettings(path=path, shuffle=False, epochs=1, **settings)))
    return [json.loads(row) for row in source.read(99)]


def test_each_task_is_a_row_with_its_prompt_and_all_of_its_data():
    found = rows("verifiers:sums?size=3")
    assert [row["prompt"] for row in found] == ["0+1=", "1+1=", "2+1="]
    assert found[2]["task"] == {"idx": 2, "prompt": "2+1=", "answer": "3"}
    assert format_of("verifiers:sums") == ("taskset", [])


def test_tasks_without_end_are_taken_up_to_a_number():
    assert len(rows("verifiers:sums?size=0&take=7")) == 7
    with pytest.raises(ConfigError, match=r"tasks without end; say how many to take: `\?take=1000`"):
        rows("verifiers:sums?size=0")
    with pytest.raises(ConfigError, match=r"`take` is 'many'; expected how many"):
        rows("verifiers:sums?take=many")


def test_what_load_raises_is_said():
    with pytest.raises(ConfigError, match=r"its `load` raised RuntimeError: unlucky"):
        rows("verifiers:sums?size=13")


def test_another_taskset_has_another_fingerprint():
    one, same, other = (taskset_rows.open_taskset(f"verifiers:sums?size={size}") for size in (4, 4, 5))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_a_file_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "tasks.py").write_text("")
    config = Config(data=DataSettings(path="verifiers:tasks.py:Sums?size=3"))
    assert with_absolute_paths(config, tmp_path).data.path == f"verifiers:{tmp_path}/tasks.py:Sums?size=3"
