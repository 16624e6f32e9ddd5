"""The split of devices that a search finds, against every split there is."""

import pytest

from controller.config.load import change_config
from controller.config.models import Config
from controller.simulation.splits import (
    Point,
    Split,
    all_points,
    best_splits,
    caps_of,
    chosen,
    config_of,
    front,
    splits_of,
)
from protocol.errors import ConfigError


def config(steps=14, **simulation) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {"instances": 3, "group_size": 2, "max_response_tokens": 200, "max_running": 8},
            "trainer": {"batch_groups": 4, "ranks": 2},
            "staleness": {"max_staleness": 1},
            "simulation": {"pull_s": 0.2, **simulation},
        }
    )


ROLLOUT_BOUND = {"train_token_s": 4e-4}
WORKLOADS = [
    ROLLOUT_BOUND,
    {"train_token_s": 4e-3},
    {"train_token_s": 1.2e-3, "workload": {"kind": "bimodal"}},
]


@pytest.mark.parametrize(
    ("workload", "gpus", "bounds"),
    [
        (ROLLOUT_BOUND, 4, [1]),
        *(pytest.param(w, 8, [0, 1, 2], marks=pytest.mark.thorough) for w in WORKLOADS),
    ],
)
def test_the_best_split_is_within_five_percent_of_brute_force(workload, gpus, bounds):
    settings, simulated = config(**workload), []
    found = best_splits(settings, gpus, bounds=bounds, seeds=[1], on_point=simulated.append)
    every = all_points(settings, gpus, bounds=bounds, seeds=[1])
    assert chosen(found, None).tokens_per_s >= 0.95 * chosen(every, None).tokens_per_s
    assert simulated == found
    assert len(found) <= len(every)


def test_a_split_uses_all_devices_and_is_faster_to_train_with_more_ranks():
    settings = config(train_token_s=3e-4)
    splits = [*splits_of(settings, 5, 1, 2.0)]
    assert [(s.ranks, s.instances) for s in splits] == [(1, 4), (2, 3), (3, 2), (4, 1)]
    own = config_of(settings, splits[3])
    assert (own.trainer.ranks, own.rollout.instances) == (4, 1)
    assert own.simulation.train_token_s == pytest.approx(3e-4 * 2 / 4)
    tensor_parallel = change_config(settings, ["rollout.engine=vllm", "rollout.vllm.tensor_parallel_size=2"])
    assert [(s.ranks, s.instances) for s in splits_of(tensor_parallel, 6, 1, 2.0)] == [(2, 2), (4, 1)]


def test_splits_that_the_configuration_refuses_are_left_out():
    splits = [*splits_of(config(), 12, 1, 2.0)]  # a batch has 8 responses for the ranks to share
    assert max(split.ranks for split in splits) == 8


def test_too_few_devices_are_refused_in_words():
    with pytest.raises(ConfigError, match="No split of 1 devices makes a run: expected enough"):
        best_splits(config(), 1, bounds=[1], seeds=[1])


def point(tokens, staleness):
    return Point(Split(1, 1, 1, 1.0), tokens, None, staleness, 0.0, 0.0)


def test_the_front_has_those_than_which_none_is_both_faster_and_fresher():
    points = [point(10, 1.0), point(5, 0.0), point(4, 0.5), point(10, 1.5), point(12, 2.0), point(11, 1.0)]
    assert front(points) == [point(5, 0.0), point(11, 1.0), point(12, 2.0)]
    assert chosen(points, None) == point(12, 2.0)
    assert chosen(points, 1.0) == point(11, 1.0)
    assert chosen(points, -1.0) is None


@pytest.mark.parametrize(("bound", "caps"), [(0, [1.0]), (1, [1.0, 1.5, 2.0]), (4, [1.0, 3.0, 5.0])])
def test_caps_are_one_batch_all_that_the_bound_allows_and_the_middle(bound, caps):
    assert caps_of(bound) == caps
