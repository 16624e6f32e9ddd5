"""Instances that are alike share one cost model; one that is not is known by its own."""

import pytest

from strategies.cost_model import QWEN_7B_TP1, Coefficients, scaled, step_latency
from strategies.instance_kinds import MAX_KINDS, InstanceKinds
from tests.support.status_reports import Reports, wide


class Cluster:
    """Instances of these speeds, which report in turn."""

    def __init__(self, speeds: list[float]) -> None:
        self.kinds = InstanceKinds(QWEN_7B_TP1)
        self.speeds = dict(enumerate(speeds))
        self.reports = {number: Reports(number) for number in self.speeds}
        self.fits = {number: self.kinds.join(number) for number in self.speeds}

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for number, reports in self.reports.items():
                before = reports.last
                after = reports.next(self.truth(number), *wide(reports.random))
                self.fits[number] = self.kinds.observe(number, before, after)

    def truth(self, number: int) -> Coefficients:
        return scaled(QWEN_7B_TP1, decode=1 / self.speeds[number], prefill=1.0)

    def miss(self, number: int) -> float:
        """Mean relative error of what is believed of this instance."""
        loads = [(1, 2_000), (8, 16_000), (32, 100_000), (64, 300_000)]
        believed, true = self.fits[number].coefficients, self.truth(number)
        pairs = [(step_latency(believed, *load), step_latency(true, *load)) for load in loads]
        return sum(abs(a - b) / b for a, b in pairs) / len(pairs)


def test_equal_instances_are_believed_to_be_equal():
    cluster = Cluster([1.7] * 12)
    cluster.run(40)
    assert len(set(cluster.fits.values())) == 1
    assert cluster.miss(0) < 0.02
    assert cluster.kinds.like(3) == list(range(12))


@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0, 0.4], [1.0, 0.4] * 4, [1.0] * 7 + [1.5]])
def test_instances_of_two_speeds_are_told_apart(speeds):
    cluster = Cluster(speeds)
    cluster.run(150)
    assert all(cluster.miss(number) < 0.05 for number in cluster.fits)
    assert len(set(cluster.fits.values())) == 2


def test_one_that_slows_down_is_followed_and_comes_back_to_the_others():
    cluster = Cluster([1.0] * 6)
    cluster.run(60)
    cluster.speeds[2] = 0.25
    cluster.run(60)
    assert cluster.miss(2) < 0.1
    assert cluster.miss(0) < 0.05
    assert cluster.fits[2] is not cluster.fits[0]
    cluster.speeds[2] = 1.0
    cluster.run(60)
    assert cluster.fits[2] is cluster.fits[0]
    assert len(cluster.kinds._kinds) == 1


def test_one_that_comes_back_little_by_little_joins_the_others_again():
    cluster = Cluster([1.0] * 6)
    cluster.run(60)
    cluster.speeds[2] = 0.5
    cluster.run(60)
    assert cluster.fits[2] is not cluster.fits[0]
    while cluster.speeds[2] < 1.0:  # never so much at once that it would look for another kind
        cluster.speeds[2] = min(1.0, cluster.speeds[2] * 1.03)
        cluster.run(20)
    cluster.run(40)
    assert cluster.fits[2] is cluster.fits[0]
    assert len(cluster.kinds._kinds) == 1


def test_what_was_taught_stays_for_those_that_come_later():
    cluster = Cluster([2.5] * 3)
    cluster.run(40)
    for number in range(3):
        cluster.kinds.leave(number)
    cluster.kinds.leave(0)  # it is gone already
    cluster.fits[0] = cluster.kinds.join(0)
    assert cluster.miss(0) < 0.03


def test_instances_of_any_speed_make_few_kinds_and_each_is_known():
    cluster = Cluster([1.04**number for number in range(100)])  # the fastest has fifty times the speed
    cluster.run(60)
    assert len(set(cluster.fits.values())) == len(cluster.kinds._kinds) == MAX_KINDS
    misses = sorted(cluster.miss(number) for number in cluster.fits)
    assert misses[len(misses) // 2] < 0.15
    assert misses[-1] < 0.9


def test_an_instance_that_joins_again_counts_once_and_one_that_left_not_at_all():
    kinds = InstanceKinds(QWEN_7B_TP1)
    fit = kinds.join(0)
    assert kinds.join(0) is kinds.join(1) is fit
    assert fit.reporters == len(kinds.like(0)) == 2
    kinds.leave(1)
    kinds.leave(1)
    assert fit.reporters == len(kinds.like(0)) == 1
    cluster = Cluster([1.0] * 4 + [3.0])
    cluster.run(60)
    assert [cluster.kinds.like(number) for number in (0, 4)] == [[0, 1, 2, 3], [4]]
