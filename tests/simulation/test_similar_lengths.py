"""Batches of similar length in whole runs: the bound holds, the books close, and nobody sees the future."""

from statistics import fmean

import pytest

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.decisions.supply.prompt_order import Sampling
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.simulation import Simulation, window

PROMPTS = 32


def config(*, steps=24, streaming=False, prompts=PROMPTS, correlation=0.9, **staleness) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 1000, "max_running": 64},
            "trainer": {"batch_groups": 4, "streaming": streaming},
            "staleness": {"max_staleness": 1, "keep_kv": True, "sampler": "similar_length", **staleness},
            "simulation": {
                "workload": {
                    "median_tokens": 80,
                    "sigma": 1.3,
                    "group_correlation": correlation,
                    "prompts": prompts,
                    "prompt_tokens": 16,
                },
                "pull_s": 0.3,
                "publish_s": 0.1,
                "score_s": 0.05,
            },
        }
    )


def orders_of(settings, *, change=None, until=3):
    """The orders of the first windows; `change(group, member, length)` gives other lengths."""
    found: list[list[int]] = []
    simulation = Simulation(settings, seed=5, with_digest=False)
    if change is not None:
        own = simulation.cluster.workload.length
        simulation.cluster.workload.length = lambda g, m, turn=0: change(g, m, own(g, m, turn))
    sampling = simulation.core.sampling
    make = sampling._order

    def order(groups):
        before = len(simulation.core.state.fresh)
        assert all(group.policy_version is None for group in groups)
        make(groups)
        found.append(list(simulation.core.state.fresh)[before:])
        if len(found) == until:
            raise StopIteration

    sampling._order = order
    with pytest.raises(StopIteration):
        simulation.run()
    return found


def test_no_decision_changes_with_lengths_that_nobody_has_seen():
    settings = config()
    known = orders_of(settings)
    last = 2 * PROMPTS  # the third window is prompts 64 to 95, none of which has started when it is made

    def permuted(group, member, length):
        return 1001 - length if group >= last else length

    assert orders_of(settings, change=permuted) == known
    other = orders_of(settings, change=lambda group, member, length: 1001 - length)
    assert other[0] == known[0]
    assert other[2] != known[2]


def test_later_epochs_have_batches_of_similar_length_and_the_books_close():
    outcome = Simulation(config(), seed=2, with_digest=False).run()
    assert outcome.is_success, outcome.reason
    figures = window(outcome.starts, max_staleness=1, skip=0)
    assert figures is not None
    assert figures.violations == 0
    means = [line["response_length/mean"] for line in outcome.lines]
    assert max(means[8:]) > 4 * min(means[8:])
    told = [line for line in outcome.lines if "sampler/windows" in line]
    assert sum(line["sampler/windows"] for line in told) >= 2
    assert all(line["sampler/length_bias"] == 0 for line in told)
    assert told[-1]["sampler/known_share"] == 1
    assert told[-1]["sampler/log_error"] < 0.55 < told[0]["sampler/log_error_new"]
    assert outcome.summary["sampler/length_bias"] == 0


@pytest.mark.parametrize(
    "rule", [{"spare_responses": 1}, {"spare_groups": 2}, {"strategy": "roll_flash"}], ids=str
)
def test_no_bias_is_told_where_long_responses_are_called_off(rule):
    simulation = Simulation(config(**rule), seed=2, with_digest=False)
    outcome = simulation.run()
    assert outcome.is_success, outcome.reason
    told = [line for line in outcome.lines if "sampler/windows" in line]
    assert sum(line["sampler/windows"] for line in told) >= 2
    assert all((line["sampler/length_bias"] is None) == (line["sampler/dropped_share"] > 0) for line in told)
    assert outcome.summary["sampler/length_bias"] is None
    assert 0 < outcome.summary["sampler/dropped_share"] < 1
    workload, last = simulation.cluster.workload, max(max(start.groups) for start in outcome.starts)
    whole = fmean(workload.length(group, member) for group in range(last + 1) for member in (0, 1))
    assert outcome.summary["sampler/trained_length"] < 0.9 * whole


def test_what_a_filter_drops_is_told_as_bias():
    settings = config(filter="zero_variance", steps=20)
    outcome = Simulation(settings, seed=2, with_digest=False, check_every=20).run()
    told = [line["sampler/length_bias"] for line in outcome.lines if "sampler/windows" in line]
    assert outcome.is_success
    assert told
    assert all(abs(bias) < 0.5 for bias in told)


def test_streaming_keeps_the_bound_with_batches_of_similar_length():
    outcome = Simulation(config(streaming=True, steps=16), seed=2, with_digest=False, check_every=20).run()
    assert outcome.is_success, outcome.reason
    figures = window(outcome.starts, max_staleness=1, skip=0)
    assert figures is not None
    assert figures.violations == 0
    assert fmean(start.trajectories for start in outcome.starts) == 8


@pytest.mark.parametrize("spare", [0, 1])
def test_a_window_survives_a_snapshot_of_the_core(spare):
    settings = config(spare_responses=spare)
    simulation = Simulation(settings, seed=3, with_digest=False)
    simulation.on_start = lambda start: halt() if len(simulation.outcome.starts) == 12 else None

    def halt():
        raise StopIteration

    with pytest.raises(StopIteration):
        simulation.run()
    core = simulation.core
    twin = thaw(Freezer().freeze(core), load_strategies(settings))
    prompts = [(1 + prompt, 0) for prompt in range(PROMPTS)]
    assert twin.state.windows.lengths.expect(prompts) == core.state.windows.lengths.expect(prompts)
    assert all(one.seen for one in twin.state.windows.lengths.expect(prompts))
    assert twin.state.windows.total == core.state.windows.total
    assert bool(core.state.windows.total.dropped) == bool(spare)
    assert twin.state.windows._untold == core.state.windows._untold
    assert twin.state.windows._open == core.state.windows._open
    waiting = [core.state.groups[group] for group in core.state.windows.waiting]
    Sampling(core.state)._order(waiting)
    Sampling(twin.state)._order([twin.state.groups[group.id] for group in waiting])
    assert twin.state.fresh == core.state.fresh
