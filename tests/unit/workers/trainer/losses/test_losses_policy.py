"""Every policy loss against numbers worked by hand in float64, values and gradients, and against a loop."""

import math
from pathlib import Path

import pytest
import torch

from protocol import algorithms
from protocol.settings import TrainerSettings
from workers.trainer.losses import LOSSES, Tokens, policy_loss

PAGE = Path(__file__).resolve().parents[5] / "docs" / "algorithms.md"

EXACT = 1e-9


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def tokens(ratios, advantages, *, sequences=None, reference=None, **options):
    """Tokens of logprob log(0.2) under the proximal policy, moved by these ratios; each counts 1/N."""
    proximal = torch.full((len(ratios),), math.log(0.2), dtype=torch.float64)
    logprobs = (proximal + doubles(*ratios).log()).requires_grad_()
    return Tokens(
        logprobs=logprobs,
        entropy=torch.ones_like(proximal),
        proximal_logprobs=proximal,
        rollout_logprobs=proximal,
        reference_logprobs=reference,
        advantages=doubles(*advantages),
        importance_weights=torch.ones_like(proximal),
        token_weights=torch.full_like(proximal, 1 / len(ratios)),
        sequences=torch.tensor(sequences or [0] * len(ratios)),
        policy_versions=torch.zeros(len(ratios), dtype=torch.int64),
        settings=TrainerSettings(**options),
    )


def replaced(some, **changes):
    return Tokens(**{name: changes.get(name, getattr(some, name)) for name in Tokens.__slots__})


def outcome(some, name):
    """(loss, gradient, tokens clipped)"""
    result = policy_loss(some, LOSSES[name])
    (gradient,) = torch.autograd.grad(result.loss, some.logprobs)
    return result.loss.item(), gradient.tolist(), int(result.clipped)


def test_ppo_with_an_asymmetric_clip_and_importance_weights():
    # min: 1.3 (clipped), 0.5, -1.5, -0.8 (clipped); weighted 1.3 + 0.25 - 3 - 0.8 = -2.25
    some = tokens([1.5, 0.5, 1.5, 0.5], [1, 1, -1, -1], clip_low=0.2, clip_high=0.3)
    loss, gradient, clipped = outcome(replaced(some, importance_weights=doubles(1.0, 0.5, 2.0, 1.0)), "ppo")
    assert loss == pytest.approx(2.25 / 4, abs=EXACT)
    assert gradient == pytest.approx([0.0, -0.25 * 0.25, 0.25 * 3.0, 0.0], abs=EXACT)
    assert clipped == 2


def test_dual_clip_bounds_what_a_negative_advantage_costs():
    # 8 * -1 costs no more than 3; 2 * -1 is within; positive advantages are not touched by it
    loss, gradient, clipped = outcome(tokens([8.0, 2.0, 8.0], [-1, -1, 1], dual_clip=3.0), "ppo")
    assert loss == pytest.approx((3 + 2 - 1.2) / 3, abs=EXACT)
    assert gradient == pytest.approx([0.0, 2 / 3, 0.0], abs=EXACT)
    assert clipped == 2


def test_gspo_clips_the_geometric_mean_of_a_responses_ratios():
    # response 0: sqrt(4 * 1) = 2, clipped at 1.2; response 1: sqrt(0.5 * 2) = 1
    ratios, sequences = [4.0, 0.5, 1.0, 2.0], [0, 1, 0, 1]
    some = tokens(ratios, [1, 2, 1, 2], sequences=sequences, loss="gspo")
    loss, gradient, clipped = outcome(some, "gspo")
    assert loss == pytest.approx(-(2 * 1.2 + 2 * 2) / 4, abs=EXACT)
    # each token of response 1 shares in both of its terms: 1/4 * 2 * s * A / length
    assert gradient == pytest.approx([0.0, -0.5, 0.0, -0.5], abs=EXACT)
    assert clipped == 2


def test_cispo_clips_the_weight_and_keeps_every_gradient():
    some = tokens([8.0, 0.1, 2.0], [1, 1, -1], algorithm="cispo")
    loss, gradient, clipped = outcome(some, "cispo")
    logprobs = some.logprobs.tolist()
    assert loss == pytest.approx(-(5 * logprobs[0] + 0.1 * logprobs[1] - 2 * logprobs[2]) / 3, abs=EXACT)
    assert gradient == pytest.approx([-5 / 3, -0.1 / 3, 2 / 3], abs=EXACT)
    assert clipped == 1


def test_reinforce_is_the_plain_policy_gradient_weighted_by_the_ratio():
    loss, gradient, clipped = outcome(tokens([3.0, 1.0], [1, -2]), "reinforce")
    assert loss == pytest.approx(-(3 - 2) / 2, abs=EXACT)
    assert gradient == pytest.approx([-1.5, 1.0], abs=EXACT)
    assert clipped == 0


def test_likelihood_is_the_negative_logprob_whatever_the_ratio():
    some = tokens([3.0, 0.5], [1, 1], algorithm="sft")
    loss, gradient, clipped = outcome(some, "likelihood")
    assert loss == pytest.approx(-sum(some.logprobs.tolist()) / 2, abs=EXACT)
    assert gradient == pytest.approx([-0.5, -0.5], abs=EXACT)
    assert clipped == 0


def test_m2po_leaves_out_what_moved_farthest_until_the_second_moment_is_small():
    # squares of logs 0.0091, 0.48, 0, 5.3: the mean of the three smallest is 0.163, of the two 0.0045
    some = tokens([1.1, 2.0, 1.0, 0.1], [1, 1, -1, -1], algorithm="m2po")
    loss, gradient, left_out = outcome(some, "m2po")
    assert left_out == 2
    assert loss == pytest.approx((-1.1 + 1.0) / 4, abs=EXACT)
    assert gradient == pytest.approx([-1.1 / 4, 0.0, 1.0 / 4, 0.0], abs=EXACT)


def test_m2po_clips_nothing_while_the_second_moment_is_small():
    # one token has moved by a half, which any clip of 0.2 would hold back; the mean square is 0.0164
    some = tokens([1.5, *[1.0] * 9], [1] * 10, algorithm="m2po")
    _, gradient, left_out = outcome(some, "m2po")
    assert left_out == 0
    assert gradient[0] == pytest.approx(-1.5 / 10, abs=EXACT)


def test_m2po_counts_the_distance_to_the_policy_that_sampled():
    some = tokens([1.0, 1.0], [1, 1], algorithm="m2po")
    stale = replaced(some, rollout_logprobs=some.proximal_logprobs - doubles(0.0, 1.0))
    assert outcome(stale, "m2po")[2] == 1


def test_the_configuration_knows_every_loss_and_the_page_says_what_it_is():
    assert set(LOSSES) == set(algorithms.LOSSES), (
        "LOSSES of workers/trainer/losses/policy.py and of protocol/algorithms.py name the same losses: "
        "`trainer.loss` refuses one without its name in the latter"
    )
    meaning = TrainerSettings.model_fields["loss"].description
    rows = PAGE.read_text().partition("**Loss**")[2].partition("**Rejection**")[0]
    for name in LOSSES:
        assert f"`{name}`" in meaning, f"name {name} in the docstring of `loss`: protocol/trainer/settings.py"
        assert f"\n| `{name}` | " in rows, f"docs/algorithms.md has no row of {name} below **Loss**"


@pytest.mark.parametrize("name", LOSSES)
def test_with_equal_policies_every_loss_has_the_gradient_of_the_policy_gradient(name):
    advantages = [0.5, -1.0, 2.0]
    # one response per token, so that the gradient of a response is that of its token
    some = tokens([1.0, 1.0, 1.0], advantages, sequences=[0, 1, 2], clip_low=0.2, clip_high=0.2)
    _, gradient, clipped = outcome(some, name)
    assert gradient == pytest.approx([-advantage / 3 for advantage in advantages], abs=EXACT)
    assert clipped == 0


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    # d = log reference - log policy = log 2
    [("k2", math.log(2) ** 2 / 2, -math.log(2)), ("k3", 2 - 1 - math.log(2), 1 - 2.0)],
)
def test_kl_to_the_reference_is_added_to_the_loss(estimator, value, slope):
    reference = torch.full((2,), math.log(0.4), dtype=torch.float64)
    some = tokens([1.0, 1.0], [0, 0], reference=reference, kl_coefficient=0.1, kl_estimator=estimator)
    result = policy_loss(some, LOSSES["ppo"])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(0.1 * value, abs=EXACT)
    assert result.kl.item() == pytest.approx(2 * value, abs=EXACT)
    assert some.logprobs.grad.tolist() == pytest.approx([0.05 * slope] * 2, abs=EXACT)


def test_kl_in_the_reward_leaves_the_loss_alone_and_is_still_reported():
    reference = torch.full((2,), math.log(0.4), dtype=torch.float64)
    options = {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"}
    some = tokens([1.0, 1.0], [0, 0], reference=reference, **options)
    result = policy_loss(some, LOSSES["ppo"])
    assert result.loss.item() == 0
    assert result.kl.item() == pytest.approx(-2 * math.log(2), abs=EXACT)


def test_the_entropy_bonus_is_taken_off_the_loss():
    some = tokens([1.0, 1.0], [0, 0], entropy_coefficient=0.01)
    entropy = doubles(1.0, 3.0).requires_grad_()
    result = policy_loss(replaced(some, entropy=entropy), LOSSES["ppo"])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-0.02, abs=EXACT)
    assert entropy.grad.tolist() == pytest.approx([-0.005, -0.005], abs=EXACT)


def test_a_users_loss_may_return_nothing_but_numbers_per_token():
    some = tokens([2.0, 1.0], [1, 1])
    result = policy_loss(some, lambda seen: -seen.logprobs * seen.advantages)
    assert result.loss.item() == pytest.approx(-(some.logprobs.sum().item()) / 2, abs=EXACT)
    assert result.clipped == 0


def test_ratios_that_are_not_finite_are_neutralised_and_counted():
    some = tokens([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1])
    proximal = some.proximal_logprobs.clone()
    proximal[1], proximal[2] = -math.inf, math.nan
    for name in LOSSES:
        result = policy_loss(replaced(some, proximal_logprobs=proximal), LOSSES[name])
        assert math.isfinite(result.loss.item())
        assert result.nonfinite == 2
    (gradient,) = torch.autograd.grad(
        policy_loss(replaced(some, proximal_logprobs=proximal), LOSSES["ppo"]).loss, some.logprobs
    )
    assert gradient.tolist() == [-0.25, 0.0, 0.0, -0.25]


def test_a_token_without_a_rollout_logprob_is_not_trained_through_the_others_of_its_response():
    some = tokens([1.1, 0.9, 1.05, 1.0], [1, 1, 1, 1], sequences=[0, 0, 0, 1])
    rollout, weights = some.rollout_logprobs.clone(), some.token_weights.clone()
    rollout[1], weights[1] = math.nan, 0.0
    some = replaced(some, rollout_logprobs=rollout, token_weights=weights)
    for name in LOSSES:
        _, gradient, _ = outcome(some, name)
        assert gradient[1] == 0.0, name
        assert all(gradient[place] < 0 for place in (0, 2, 3)), name


def test_decoupled_ppo_equals_a_naive_loop_of_its_formula():
    """AReaL's objective: (prox / behav, truncated) * min(u A, clip(u) A), whatever else is configured."""
    generator = torch.Generator().manual_seed(0)
    logprobs, proximal, rollout, advantages = torch.randn(4, 200, generator=generator, dtype=torch.float64)
    weights = torch.rand(200, generator=generator, dtype=torch.float64)
    importance = (proximal - rollout).exp().clamp(max=2.0)
    some = replaced(
        tokens([1.0] * 200, [0] * 200, clip_high=0.28),
        logprobs=logprobs.requires_grad_(),
        proximal_logprobs=proximal,
        advantages=advantages,
        importance_weights=importance,
        token_weights=weights,
    )
    loss, gradient = 0.0, []
    for log_p, log_x, log_r, a, w in zip(
        *(c.tolist() for c in (logprobs, proximal, rollout, advantages, weights)), strict=True
    ):
        factor, u = w * min(math.exp(log_x - log_r), 2.0), math.exp(log_p - log_x)
        clipped = min(max(u, 0.8), 1.28) * a
        loss -= factor * min(u * a, clipped)
        gradient.append(-factor * u * a if u * a <= clipped else 0.0)
    found = outcome(some, "ppo")
    assert found[0] == pytest.approx(loss, abs=EXACT)
    assert found[1] == pytest.approx(gradient, abs=EXACT)
    assert found[2] == sum(g == 0 for g in gradient)
