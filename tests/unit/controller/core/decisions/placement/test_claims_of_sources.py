"""Which prompts start first where sources have priorities and quotas, and what may not go with them."""

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.core.invariants import check_invariants
from tests.support.answered_run import AnsweredRun
from tests.support.placing_run import Run

LONG, SHORT = {"path": "long.jsonl"}, {"path": "short.jsonl"}


def started(*sources, groups: int) -> list[int]:
    """Sources of the first groups that start where prompts of two sources wait, in turn, for one instance."""
    run = Run(
        instances=0,
        prompts=8,
        data={"sources": list(sources), "shuffle": False},
        staleness={"max_staleness": 3, "mu": 0.0, "in_flight_batches": "all"},
        batch_groups=2,
    )
    run.join("A", capacity=2 * groups, version=0)
    found = list(dict.fromkeys(group for group, _ in run.routes))
    assert len(found) == groups
    return [run.core.state.groups[group].source for group in found]


def test_without_claims_prompts_start_in_the_order_they_were_read_in():
    assert sorted(started(LONG, SHORT, groups=4)) == [0, 0, 1, 1]


def test_prompts_of_a_higher_priority_start_before_all_others():
    assert started(LONG, SHORT | {"priority": 1}, groups=6) == [1, 1, 1, 1, 0, 0]
    assert started(LONG | {"priority": 1}, SHORT, groups=6) == [0, 0, 0, 0, 1, 1]


def test_a_source_has_no_more_of_the_system_than_its_quota_while_others_wait():
    found = started(LONG | {"priority": 1, "quota": 0.25}, SHORT, groups=6)
    assert found == [0, 1, 1, 1, 1, 0]  # the last because no other waits


@pytest.mark.parametrize("source", [0, 1])
def test_a_run_with_priorities_and_quotas_trains_prompts_of_all_sources_to_its_end(tmp_path, source):
    sources = [dict(LONG), dict(SHORT)]
    sources[source] |= {"priority": 3, "quota": 0.5}
    run = AnsweredRun(tmp_path / "run.db", steps=6, data={"sources": sources})
    trained = set[int]()

    def note(peer, message, answer=run.answer_message):
        for item in getattr(message, "items", ()):
            if (group := run.core.state.groups.get(getattr(item, "group", -1))) is not None:
                trained.add(group.source)
        answer(peer, message)

    run.answer_message = note
    run.to_the_end()
    assert run.core.state.steps == 6
    check_invariants(run.core)  # what the ledger counts of each source among them
    assert trained == {0, 1}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"staleness": {"sampler": "similar_length"}}, "orders them already"),
        ({"trainer": {"algorithm": "sft"}}, "in the order of the data"),
    ],
)
def test_who_orders_prompts_otherwise_refuses_them_in_words(sections, words):
    config = {"data": {"sources": [LONG | {"priority": 2}, SHORT]}, **sections}
    texts = [text for _, text in cross_field_problems(Config.model_validate(config))]
    assert any("is 2, which changes the order" in text and words in text for text in texts), texts


def test_quotas_that_nobody_could_keep_are_refused():
    data = {"sources": [LONG | {"quota": 0.5}, SHORT | {"quota": 0.25}]}
    texts = [text for _, text in cross_field_problems(Config.model_validate({"data": data}))]
    assert any("sum to 0.75 (long 0.5, short 0.25)" in text for text in texts), texts


@pytest.mark.parametrize("quota", [0, -0.5, 1.5, "nan"])
def test_a_quota_is_a_share(quota):
    with pytest.raises(ValueError, match="quota"):
        Config.model_validate({"data": {"sources": [LONG | {"quota": quota}, SHORT]}})
