"""The rewards that a reward is made of: what the door lets in, and what a step's line says of them."""

import pytest

from controller.core.state.batches.contributions import Contribution
from tests.support.batch_line import batch_metrics
from tests.unit.controller.core.decisions.workers.test_plausibility import is_closed, line_of, step_with


def contribution(parts, *, responses=2):
    return Contribution((), (5,) * responses, {0: responses}, 0, 0, 1.0, 0.5, parts)


def test_each_reward_is_a_metric_over_the_responses_that_it_scored():
    of_four = contribution({"code": (1.0, 4), "brief": (0.5, 1)}, responses=4)
    line = batch_metrics([contribution({"math": (2.0, 2)}), of_four], 1)
    assert [line[f"reward/{name}"] for name in ("math", "code", "brief")] == [1.0, 0.25, 0.5]


SUM = {"reward": {"rewards": [{"kind": "exact"}, {"function": "m.py:brevity"}]}}


def test_a_run_of_several_rewards_tells_each():
    run = step_with(0.5, 1.5, parts=(("exact", (0.0, 1.0)), ("brevity", (0.5, 0.5))), **SUM)
    line = line_of(run)
    assert (line["reward/mean"], line["reward/exact"], line["reward/brevity"]) == (1.0, 0.5, 0.5)


@pytest.mark.parametrize(
    "parts",
    [
        (("math", (0.0, 1.0)),),
        (("exact", (0.0,)),),
        (("exact", (0.0, 1.0)), ("exact", (0.0, 1.0))),
        (("exact", (0.0, 1e31)),),
    ],
)
def test_parts_that_the_run_has_not_end_the_worker(parts):
    assert is_closed(step_with(0.5, 1.5, parts=parts, **SUM))
    assert not is_closed(step_with(0.5, 1.5, parts=(("exact", (0.0, 1.0)),), **SUM))
