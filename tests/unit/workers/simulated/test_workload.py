"""Lengths of simulated responses: the known distributions, correlation, and independence of order."""

from statistics import correlation, fmean

import pytest

from protocol.errors import ConfigError
from workers.simulated import Workload, make_distribution
from workers.simulated.workload import classes

KNOWN = [  # kind, cap, mean, median, 99th percentile
    ("lognormal", 16384, 4248, 2997, 16384),
    ("bimodal", 24000, 4204, 2000, 24000),
    ("power_law", 40960, 4279, 2143, 40960),
    ("uniform", 8192, 4343, 4321, 8122),
]


@pytest.mark.parametrize(("kind", "cap", "mean", "median", "p99"), KNOWN)
def test_the_defaults_are_the_workloads_with_known_results(kind, cap, mean, median, p99):
    distribution = make_distribution(kind, cap=cap)
    assert distribution.mean() == pytest.approx(mean, rel=0.015)
    assert distribution.quantile(0.5) == pytest.approx(median, rel=0.01)
    assert distribution.quantile(0.99) == pytest.approx(p99, rel=0.01)


@pytest.mark.parametrize(
    "wide", [{"kind": "lognormal", "sigma": 300.0}, {"kind": "power_law", "alpha": 0.01}]
)
def test_lengths_beyond_every_number_are_at_the_cap(wide):
    distribution = make_distribution(cap=1000, low=3, **wide)
    assert (distribution.quantile(1e-9), distribution.quantile(1 - 1e-12)) == (3, 1000)


def test_lengths_depend_on_seed_group_and_member_alone():
    distribution = make_distribution("lognormal", cap=1000)
    one, same, other = (Workload(distribution, seed=seed) for seed in (3, 3, 4))
    ids = [(group, member) for group in range(50) for member in range(4)]
    lengths = [one.length(*id) for id in ids]
    assert [same.length(*id) for id in reversed(ids)] == lengths[::-1]
    assert [other.length(*id) for id in ids] != lengths
    assert 1 <= min(lengths) < max(lengths) <= 1000


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_siblings_are_as_correlated_as_told_and_their_distribution_stays(rho):
    workload = Workload(make_distribution("uniform", cap=8192), seed=1, group_correlation=rho)
    first = [workload.length(group, 0) for group in range(4000)]
    second = [workload.length(group, 1) for group in range(4000)]
    assert correlation(first, second) == pytest.approx(rho, abs=0.05)
    assert fmean(first) == pytest.approx(4352, rel=0.03)


def test_full_correlation_makes_siblings_equal():
    workload = Workload(make_distribution("power_law", cap=4096), seed=1, group_correlation=1.0)
    assert len({workload.length(5, member) for member in range(16)}) == 1


def test_a_trace_gives_back_its_own_lengths():
    distribution = make_distribution("trace", cap=100, lengths=[7, 3, 9, 3])
    assert sorted({distribution.quantile((i + 0.5) / 100) for i in range(100)}) == [3, 7, 9]
    assert distribution.mean() == pytest.approx(5.5)


@pytest.mark.parametrize("arguments", [{"kind": "trace"}, {"kind": "uniform", "low": 200}])
def test_impossible_workloads_are_refused(arguments):
    with pytest.raises(ConfigError, match=r"give "):
        make_distribution(arguments.pop("kind"), cap=100, **arguments)


def test_classes_keep_the_mean_and_whole_atoms():
    lengths = make_distribution("bimodal", cap=24000).sample()
    found = classes(lengths, 50)
    assert sum(share for _, share in found) == pytest.approx(1.0)
    assert sum(length * share for length, share in found) == pytest.approx(fmean(lengths))
    assert found == [(2000.0, pytest.approx(0.9)), (24000.0, pytest.approx(0.1))]
