"""The schema that editors read: up to date, named in the examples, and no stricter than launch.py."""

import json
from pathlib import Path

import pytest
import yaml

from controller.config.load import load_config
from controller.config.yaml_file import read_yaml
from docs import make_schema
from protocol.engines import ENGINES
from protocol.errors import ConfigError

jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / make_schema.FILE
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(FILE.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_it_is_up_to_date():
    assert FILE.read_text() == make_schema.render(), "run: python docs/make_configuration.py"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_name_it_and_fit_it(validator, example):
    first = example.read_text().splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert (example.parent / place).resolve() == FILE
    validator.validate(read_yaml(example.read_text())[0])


@pytest.mark.parametrize(
    "tree",
    [
        {"run": None},
        {"run": {"steps": "${STEPS}"}, "trainer": {"algorithm": "${ALGORITHM:-grpo}"}},
        {"staleness": {"keep_kv": "yes", "in_flight_batches": "auto", "routing": "mine.py:route"}},
        {"model": {"factory": None}, "rollout": {"vllm": {"engine_args": {"a": 1, "b": "c"}}}},
        {"reward": {"rewards": [{"kind": "exact", "weight": "${STEPS}"}, {"function": "a.py:f"}]}},
        {"trainer": {"lora": {"rank": 8, "target_modules": ["q_proj"]}}},
    ],
)
def test_what_launch_takes_fits(validator, tree, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "3")
    validator.validate(tree)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    load_config(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize(
    "tree",
    [
        {"run": {"stesp": 1}}, {"runs": {}}, {"run": {"steps": "many"}}, {"run": {"steps": -1}},
        {"trainer": {"algorithm": "gropo"}}, {"rollout": {"sampling": {"temperature": 11}}}, {"run": []},
    ],
)  # fmt: skip
def test_what_it_refuses_launch_refuses(validator, tree, tmp_path):
    assert not validator.is_valid(tree)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError):
        load_config(str(tmp_path / "run.yaml"))


def test_an_editor_is_told_meanings_and_what_is_built_in(validator):
    definitions = validator.schema["$defs"]
    assert definitions["RunSettings"]["properties"]["steps"]["description"] == "Train steps to make."
    assert {"enum": [*ENGINES]} in definitions["RolloutSettings"]["properties"]["engine"]["anyOf"]
