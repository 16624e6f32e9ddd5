"""The bound for batches of similar length is that of mixed ones where nothing is known, else above it."""

import pytest

from controller.config.models import Config
from controller.simulation.bounds import throughput_bound
from controller.simulation.similar_bound import batches_of, similar_bound
from controller.simulation.simulated_workers import distribution_of


def cluster(correlation, **trainer) -> Config:
    return Config.model_validate(
        {
            "rollout": {
                "instances": 8, "group_size": 8, "max_response_tokens": 8192, "max_running": 4096,
            },
            "trainer": {"batch_groups": 16, **trainer},
            "staleness": {"max_staleness": 1, "sampler_batches": 4},
            "simulation": {
                "workload": {"sigma": 1.3, "median_tokens": 800, "group_correlation": correlation},
                "train_token_s": 1e-4,
            },
        }
    )  # fmt: skip


def test_batches_of_which_nothing_is_known_have_the_bound_of_mixed_ones():
    config = cluster(0.0)
    assert similar_bound(config, seen=8) == pytest.approx(throughput_bound(config), rel=0.05)


def test_batches_of_similar_length_have_a_higher_bound():
    config = cluster(0.8)
    means = [
        sum(length * share for length, share in kind.classes)
        for kind in batches_of(0.8, distribution_of(config), 4, seen=8)
    ]
    assert means == sorted(means)
    assert means[-1] > 4 * means[0]
    assert similar_bound(config, seen=8) > 1.2 * throughput_bound(config)


def test_training_in_parts_leaves_more_of_the_window():
    assert throughput_bound(cluster(0.0, streaming=True)) > 1.03 * throughput_bound(cluster(0.0))
