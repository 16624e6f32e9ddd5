"""A run tells which releases made it, and how they differ from the one here."""

import json

import pytest

from controller.config.models import Config
from controller.durability.release import (
    RELEASES,
    ReleasePart,
    changed_release,
    differences,
    differences_of,
    facts_again,
    facts_of,
    here,
    parts_of,
)


def test_a_run_keeps_the_first_event_of_each_release_and_nothing_when_the_release_is_the_same():
    begun = json.loads(facts_of(Config(), run_dir="here", import_paths=())[RELEASES])
    assert begun == [[1, here()]]
    again = facts_again(Config(), parts_of(begun, {}), last=70)
    assert json.loads(again[RELEASES]) == begun
    other = ReleasePart(1, {**here(), "sources": "other"})
    later = json.loads(facts_again(Config(), [other], last=70)[RELEASES])
    assert parts_of(later, {}) == [other, ReleasePart(71, here())]
    assert differences_of(parts_of(later, {}), 90).startswith("in events 1 to 70 sources other there and ")


@pytest.mark.parametrize("told", [[], ["?"], [[1]], [["1", {}]]])
def test_a_run_of_a_release_that_told_no_parts_has_one(told):
    assert parts_of(told, {"sources": "other"}) == [ReleasePart(1, {"sources": "other"})]


def test_what_only_computes_otherwise_is_warned_of_and_is_no_other_decision():
    made = {**here(), "workers": "other", "commit": "0123456789ab"}
    assert differences(made) == ""
    (warning,) = changed_release([ReleasePart(1, made)])
    assert f"(commit 0123456789ab there and {here()['commit']} here, workers other there" in warning or (
        not here()["commit"] and "(workers other there and" in warning
    )
    assert changed_release([ReleasePart(1, here())]) == changed_release([]) == []
    without = {name: value for name, value in here().items() if name not in ("workers", "commit")}
    assert changed_release([ReleasePart(1, without)]) == [], "an older release does not tell what computed"
