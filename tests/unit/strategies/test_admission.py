"""Admission, on views made by hand."""

import pytest

from strategies.admission import (
    Claim,
    adaptive,
    areal,
    by_cap,
    first_to_start,
    one_batch,
    roll_flash,
    verl_async,
    whole_window,
)
from strategies.views import AdmissionView

VIEW = AdmissionView(
    max_staleness=3,
    batch_groups=8,
    train_version=5,
    published_version=4,
    generating=6,
    occupied=2,
    started=50,
)


def test_the_cap_counts_a_batch_until_its_version_is_out():
    assert by_cap(VIEW, 2.0) == 0
    assert by_cap(VIEW._replace(published_version=5), 2.0) == 8
    assert whole_window(VIEW, "all") == 24
    assert adaptive(VIEW._replace(cap=16.0), "auto") == 0
    assert adaptive(VIEW._replace(cap=16.0, is_tail_bound=False), "auto") == 8


def test_rules_of_other_systems_admit_what_they_say():
    assert areal(VIEW, None) == (3 + 4 + 1) * 8 - 50
    assert one_batch(VIEW, None) == 0
    assert one_batch(VIEW._replace(generating=0, occupied=0), None) == 8
    assert verl_async(VIEW._replace(in_system_at_pull=10, started_since_pull=20), None) == 35 - 30


def test_without_claims_the_prompt_that_has_waited_longest_starts_first():
    assert first_to_start([1, 0, 1], [5, 0], [Claim(), Claim()]) == 0


def test_a_prompt_of_a_higher_priority_overtakes_and_equals_keep_their_order():
    claims = [Claim(), Claim(priority=2), Claim(priority=2)]
    assert first_to_start([0, 0, 2, 1, 2], [0, 0, 0], claims) == 2
    assert first_to_start([0, 0], [0, 0, 0], claims) == 0


def test_a_source_at_its_quota_gives_way_to_others_whatever_its_priority():
    claims = [Claim(priority=9, quota=0.25), Claim()]
    assert first_to_start([0, 0, 1], [1, 3], claims) == 2  # 2 of 5 would be too many
    assert first_to_start([0, 0, 1], [1, 6], claims) == 0  # 2 of 8 are a quarter


def test_a_quota_leaves_no_place_empty_and_never_shuts_a_source_out():
    claims = [Claim(quota=0.25), Claim()]
    assert first_to_start([0, 0], [8, 0], claims) == 0
    assert first_to_start([0, 1], [0, 2], claims) == 0


def test_nothing_starts_where_nothing_waits():
    with pytest.raises(ValueError, match="min"):
        first_to_start([], [0], [Claim()])


def test_rules_that_know_of_spare_groups_count_them_in_each_batch():
    view = VIEW._replace(spare_groups=2, generating=1, occupied=1, published_version=5)
    assert by_cap(view, 2.5) == 25 - 2
    assert whole_window(view, "all") == 4 * 10 - 2
    assert one_batch(view, None) == 10 - 2
    assert roll_flash(view, None) == 4 * 8 - 2  # that system has none
