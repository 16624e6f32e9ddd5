"""The bound moves as it has to, is above what runs make of it, and close to it where it is known."""

from dataclasses import replace

import numpy as np
import pytest

from controller.config.models import Config
from controller.simulation.bounds import (
    Batches,
    Demand,
    alone_s,
    composition_of,
    shortest_period_s,
    throughput_bound,
)
from controller.simulation.compare import compare
from tests.support.published_study import bound_in_equal_classes, bounded_cluster


def test_an_open_tail_in_fine_classes_lowers_the_bound_where_the_longest_decide():
    config = bounded_cluster("power_law", 40960)
    assert throughput_bound(config) < 0.97 * bound_in_equal_classes(config)


def test_more_staleness_or_speed_never_lowers_the_bound_and_honesty_never_raises_it():
    bounds = [throughput_bound(bounded_cluster("uniform", 8192, max_staleness=s)) for s in range(4)]
    assert bounds == sorted(bounds)
    honest = throughput_bound(bounded_cluster("uniform", 8192, max_staleness=1, publish="honest", pull_s=3.0))
    assert honest < bounds[1]
    assert throughput_bound(bounded_cluster("uniform", 8192, max_staleness=1, speeds=(1.0, 2.0))) > bounds[1]


def fixed(*, prompt, response, group_size, batch_groups, instances, most, **engine) -> Config:
    """A cluster whose responses are all equally long, and which has to pull nothing."""
    return Config.model_validate(
        {
            "run": {"steps": 21},
            "rollout": {
                "instances": instances, "group_size": group_size, "max_response_tokens": response,
                "max_prompt_tokens": prompt,
            },
            "trainer": {"batch_groups": batch_groups, "minibatches": 1},
            "staleness": {"max_staleness": most, "keep_kv": True, "in_flight_batches": "all"},
            "simulation": {
                "workload": {"kind": "fixed", "prompt_tokens": prompt}, "engine": engine, "pull_s": 0.0,
            },
        }
    )  # fmt: skip


def test_runs_whose_siblings_share_long_prompts_stay_below_the_bound():
    config = fixed(
        prompt=2048, response=2048, group_size=16, batch_groups=8, instances=4, most=2, kv_blocks=2000
    )
    (row,) = compare(config, strategies=["greedy"], bounds=[2], seeds=[1])
    assert row.total("violations") == 0
    speed, demand = row.mean("trajectories_per_s"), Demand.of(config)
    whole = replace(demand, held_tokens=demand.prompt_tokens)  # as if each held a prompt of its own
    assert demand.batch / shortest_period_s(whole, 2) < speed < row.upper_bound <= row.hardware_bound


@pytest.mark.parametrize("most", [0, 1])
def test_where_latency_decides_runs_reach_the_bound_and_do_not_pass_it(most):
    config = fixed(prompt=64, response=4096, group_size=2, batch_groups=2, instances=4, most=most)
    (row,) = compare(config, strategies=["greedy"], bounds=[most], seeds=[0])
    assert row.total("violations") == 0
    assert 0.97 < row.mean("trajectories_per_s") / row.upper_bound < 1


def test_a_response_for_each_instance_has_the_time_that_it_takes_alone():
    config = fixed(prompt=64, response=4096, group_size=2, batch_groups=2, instances=4, most=0)
    demand = Demand.of(config)
    assert 4 / throughput_bound(config) == pytest.approx(alone_s(demand, 4096) + demand.lost_s, rel=1e-3)


def test_fewer_kinds_of_steps_never_lower_the_bound():
    demand = Demand.of(bounded_cluster("bimodal", 24000, max_staleness=1))
    found = [shortest_period_s(demand, 1, kinds) for kinds in (17, 33, 65, 129)]  # each splits the one before
    assert found == sorted(found)
    assert found[-1] / found[-2] < 1.02


def with_changes(config, section, **values) -> Config:
    tree = config.model_dump()
    tree[section] |= values
    return Config.model_validate(tree)


def test_an_instance_makes_no_more_at_a_time_than_it_has_rows():
    config = fixed(prompt=64, response=1024, group_size=2, batch_groups=8, instances=1, most=0)
    one_by_one = Demand.of(with_changes(config, "rollout", max_running=1))
    alone = 16 * alone_s(one_by_one, 1024)
    assert shortest_period_s(one_by_one, None) == pytest.approx(alone, rel=0.02)
    assert shortest_period_s(Demand.of(config), None) < alone / 8


@pytest.mark.parametrize("name", ["pull_s", "score_s", "publish_s"])
def test_a_response_has_less_time_by_what_else_is_done_between_its_version_and_its_step(name):
    config = fixed(prompt=64, response=1024, group_size=2, batch_groups=2, instances=4, most=1)
    slower = with_changes(config, "simulation", **{name: 7.0})
    assert Demand.of(slower).lost_s == pytest.approx(Demand.of(config).lost_s + 7.0)
    period_s = 4 / throughput_bound(config)
    assert 4 / throughput_bound(slower) == pytest.approx(period_s + 7.0 / 2, rel=1e-3)


def few_responses(kind, *, batch_groups, group_size, correlation=0.0) -> Config:
    """Batches of few responses, which seldom hold a long one; an instance for each response."""
    config = fixed(
        prompt=64, response=1024, group_size=group_size, batch_groups=batch_groups,
        instances=batch_groups * group_size, most=0,
    )  # fmt: skip
    tree = config.model_dump()
    tree["run"]["steps"] = 321
    tree["simulation"]["workload"] |= {"kind": kind, "group_correlation": correlation}
    return Config.model_validate(tree)


@pytest.mark.parametrize(("kind", "groups", "size"), [("bimodal", 4, 1), ("power_law", 2, 2)])
def test_runs_of_batches_that_seldom_hold_a_long_response_reach_the_bound_and_do_not_pass_it(
    kind, groups, size
):
    config = few_responses(kind, batch_groups=groups, group_size=size, correlation=0.8 * (size > 1))
    (row,) = compare(config, strategies=["greedy"], bounds=[0], seeds=[1, 2])
    assert 0.9 < row.mean("trajectories_per_s") / row.upper_bound < 1.01


def test_a_batch_holds_a_long_response_as_often_as_chance_has_it():
    lengths = ((100.0, 0.9), (1000.0, 0.1))
    demand = replace(Demand.of(few_responses("bimodal", batch_groups=3, group_size=2)), classes=lengths)
    none = Batches(lengths, np.zeros(1))
    found = composition_of(none, demand)
    assert found.longest == pytest.approx([0.9**6, 1 - 0.9**6])
    assert found.around == pytest.approx(np.array([[0.9**5, 1 - 0.9**5], [0, 1]]))
    draws = np.random.default_rng(0).normal(size=100_000)
    alike = composition_of(Batches(lengths, draws), replace(demand, correlation=1.0))
    assert alike.longest == pytest.approx([0.9**3, 1 - 0.9**3], abs=2e-3)  # of groups, not of responses
    assert alike.around[0] == pytest.approx([0.9**2, 1 - 0.9**2], abs=2e-3)


@pytest.mark.parametrize("most", [0, 3])
def test_large_batches_hold_every_length(most):
    demand = Demand.of(bounded_cluster("uniform", 8192, max_staleness=most))
    sixteenfold = replace(demand, batch=16 * demand.batch, capacity=16 * demand.capacity)
    period_s = shortest_period_s(sixteenfold, most)
    assert period_s == pytest.approx(shortest_period_s(demand, most), rel=2e-3)
    longest_s = alone_s(demand, demand.classes[-1][0]) / demand.fastest
    assert period_s >= (longest_s + demand.lost_s) / (most + 1) * (1 - 1e-6)
