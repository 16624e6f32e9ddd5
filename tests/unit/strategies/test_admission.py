"""Admission, on views made by hand."""

from strategies.admission import (
    adaptive,
    areal,
    by_cap,
    one_batch,
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
