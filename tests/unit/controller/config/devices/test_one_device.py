"""What `placement: colocated` refuses, each in a sentence with a remedy."""

import re

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems


def problems(tree):
    config = Config.model_validate({"placement": "colocated"} | tree)
    return {fields[0]: text for fields, text in cross_field_problems(config) if "placement" in fields}


@pytest.mark.parametrize(
    ("tree", "field", "words"),
    [
        ({"trainer": {"algorithm": "sft"}}, "trainer.algorithm", "generates nothing"),
        ({"trainer": {"streaming": True}}, "trainer.streaming", "set trainer.streaming: false"),
        ({"trainer": {"local": False}}, "trainer.local", "leave trainer.local or placement out"),
        ({"trainer": {"lora": {"rank": 4}}}, "trainer.lora.rank", "give 0"),
        ({"rollout": {"instances": 0}}, "rollout.instances", "give at least 1"),
        ({"rollout": {"engine": "vllm"}}, "rollout.engine", "is vllm, .* was never tried.* give torch"),
        ({"rollout": {"device": "cuda:1"}}, "rollout.device", "is cuda:1 and trainer.device is auto"),
        ({"staleness": {"partial_rollout": False}}, "staleness.partial_rollout", "set it to true"),
        ({"staleness": {"keep_kv": True}}, "staleness.keep_kv", "set it to false"),
    ],
)
def test_what_one_device_cannot_do_is_refused_with_a_remedy(tree, field, words):
    found = problems(tree)
    assert list(found) == [field]
    assert re.search(words, found[field]), found[field]


def test_the_defaults_can_share_a_device_and_an_engine_of_the_user_is_asked_later():
    assert problems({}) == {}
    assert problems({"rollout": {"engine": "mine.py:make"}}) == {}
    assert problems({"trainer": {"ranks": 4}, "rollout": {"instances": 8}}) == {}


def test_a_run_whose_sides_have_their_own_devices_is_asked_nothing():
    assert problems({"placement": "separate", "trainer": {"ranks": 2}, "staleness": {"keep_kv": True}}) == {}


def test_a_fresh_objective_streams_nothing_where_the_device_is_shared():
    assert Config.model_validate({"staleness": {"objective": "fresh"}}).trainer.streaming
    shared = Config.model_validate({"placement": "colocated", "staleness": {"objective": "fresh"}})
    assert not shared.trainer.streaming
