"""Which keys are named for one that there is not: close ones, or none."""

import pytest

from controller.config.known_names import keys_at, nearest
from controller.config.load import change_config, valid_keys
from controller.config.models import Config
from protocol.errors import ConfigError


def meant(field: str) -> list[str]:
    section, _, name = field.rpartition(".")
    return nearest(name, list(keys_at(Config, section).values()), list(valid_keys()))


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("trainer.lrr", ["trainer.lr"]),
        ("staleness.max", ["staleness.max_staleness"]),
        ("rollout.max_tokens", ["rollout.max_prompt_tokens", "rollout.max_response_tokens"]),
        ("rollout.instance", ["rollout.instances"]),
        ("rollout.temperature", ["rollout.sampling.temperature"]),
        ("trainer.seed", ["run.seed"]),
        ("data.sources.0.nme", ["data.sources.0.name"]),
        ("rollout.gpus", []),
        ("data.file", []),
        ("run.output", []),
        ("foo", []),
    ],
)
def test_only_what_is_close_is_named_and_the_same_section_first(field, keys):
    assert meant(field) == keys


def test_a_part_of_more_names_than_anybody_reads_names_none():
    assert nearest("max", ["a.max_one", "a.max_two", "a.max_three", "a.max_four"], ()) == []


def test_a_key_without_a_close_one_is_told_with_the_keys_of_its_section():
    with pytest.raises(ConfigError, match=r"run\.output: there is no such key\. Keys here: name, dir, seed"):
        change_config(Config.model_construct(), ["run.output=x"])


def test_a_key_in_an_entry_of_a_list_is_one_problem():
    with pytest.raises(ConfigError) as refused:
        change_config(Config.model_construct(), ["data.sources=[{nme: a}]"])
    assert str(refused.value).count("data.sources.0.nme") == 1
