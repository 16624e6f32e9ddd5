"""Ranks that share rows: what does not go with it is refused when the configuration is read."""

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems


def problems(**trainer):
    config = Config.model_validate(
        {"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"function": "r.py:f"}, "trainer": trainer}
    )
    return [(places, text) for places, text in cross_field_problems(config) if "sequence_ranks" in places[0]]


@pytest.mark.parametrize(
    ("trainer", "place", "words"),
    [
        ({"ranks": 4, "sequence_ranks": 3}, "trainer.ranks", "take 1 or 2 or 4"),
        ({"ranks": 1, "sequence_ranks": 2}, "trainer.ranks", "take 1"),
        ({"ranks": 2, "sequence_ranks": 2, "lora": {"rank": 4}}, "trainer.lora", "does not go with LoRA"),
        ({"ranks": 2, "sequence_ranks": 2, "algorithm": "ppo"}, "trainer.baseline", "not go with a critic"),
    ],
)
def test_what_ranks_cannot_share_is_refused_in_one_sentence(trainer, place, words):
    ((places, text),) = problems(**trainer)
    assert places == ("trainer.sequence_ranks", place)
    assert words in text


def test_ranks_that_torchrun_counts_are_looked_at_by_the_trainer():
    assert problems(ranks=4, sequence_ranks=2) == []
    assert problems(local=False, sequence_ranks=2) == []


def test_each_of_two_that_do_not_go_with_it_is_named_by_its_own_name():
    found = problems(ranks=2, sequence_ranks=2, lora={"rank": 4}, algorithm="ppo")
    told = {places[1]: text for places, text in found}
    assert "with LoRA (trainer.lora)" in told["trainer.lora"]
    assert "with a critic (trainer.baseline)" in told["trainer.baseline"]
