"""KL in the reward beside advantages that turns have of their own (workers/trainer/token_batch.py)."""

import numpy as np
import pytest
import torch

from tests.unit.workers.trainer.test_given_tokens import agent_batch, settings
from workers.trainer.batch import read_batch
from workers.trainer.token_batch import ForwardPass, make_token_batch

OF_SEGMENTS = (0.0, 5.0, 0.0, -3.0, 0.0, 2.0)  # turns of 4, 1 and 6 sampled tokens
OF_TOKENS = np.repeat([5.0, -3.0, 2.0], [4, 1, 6])
KL = {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"}
REINFORCE = {"baseline": "group_mean", "advantage_scale": "none"}


def advantages(tmp_path, *, outcomes=OF_SEGMENTS, **options):
    """Of an episode of three turns, and k1 of each token."""
    train, frames = agent_batch(groups=1, size=1, outcomes=outcomes)
    batch = read_batch(train, frames)
    rng = np.random.default_rng(1)
    ours, initial = (torch.from_numpy(-rng.random(11).astype("<f4")) for _ in range(2))
    flat = make_token_batch(
        batch, [range(1)], ForwardPass(ours, None, initial, None),
        settings=settings(tmp_path, **REINFORCE, **options), device=torch.device("cpu"),
    )  # fmt: skip
    return flat.advantages.numpy(), (ours - initial).numpy(), train.items[0].outcome


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_each_token_has_the_advantage_of_its_turn_less_the_penalties_to_come(tmp_path, gamma):
    found, k1, _ = advantages(tmp_path, gamma=gamma, **KL)
    to_come = [sum(gamma ** (later - at) * 0.1 * k1[later] for later in range(at, 11)) for at in range(11)]
    np.testing.assert_allclose(found, OF_TOKENS - to_come, atol=1e-5)


def test_turns_that_all_have_the_advantage_of_the_episode_are_trained_like_the_episode(tmp_path):
    whole, _, outcome = advantages(tmp_path, outcomes=(), **KL)
    by_turn, _, _ = advantages(tmp_path, outcomes=(0.0, outcome) * 3, **KL)
    np.testing.assert_allclose(by_turn, whole, atol=1e-6)


def test_kl_in_the_loss_leaves_advantages_of_turns_as_they_are(tmp_path):
    found, _, _ = advantages(tmp_path, **(KL | {"kl_in": "loss", "kl_estimator": "k3"}))
    np.testing.assert_array_equal(found, OF_TOKENS)
