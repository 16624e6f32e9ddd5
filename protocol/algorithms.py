"""`trainer.algorithm`: the algorithms of the field, each as values of other keys of `trainer`.

Invariants: a preset is nothing but values of other keys; a key that is written out counts instead; what a
preset leaves out has the field's own default, which is that of `grpo`. docs/algorithms.md shows this table.
"""

GROUP_BASELINES = ("group_mean", "leave_one_out")
"""Baselines that compare the responses to one prompt with each other."""
LOSSES = ("ppo", "gspo", "cispo", "m2po", "reinforce", "likelihood")
"""Losses of workers/trainer/losses/policy.py, by name."""

PLAIN_GRADIENT = {"advantage_scale": "none", "loss": "reinforce"}
ALGORITHMS: dict[str, dict[str, object]] = {
    "grpo": {},  # arXiv 2402.03300, without its KL term, with DAPO's mean over tokens
    "dr_grpo": {"advantage_scale": "none", "loss_aggregation": "sequence_sum"},  # arXiv 2503.20783
    "rloo": {"baseline": "leave_one_out", **PLAIN_GRADIENT, "loss_aggregation": "sequence_sum"},  # 2402.14740
    "reinforce": {"baseline": "batch_mean", **PLAIN_GRADIENT},
    "reinforce_pp": {  # arXiv 2501.03262
        "baseline": "batch_mean",
        "advantage_scale": "batch_std",
        "kl_coefficient": 1e-3,
        "kl_in": "reward",
        "kl_estimator": "k1",
    },
    "dapo": {"clip_high": 0.28, "dual_clip": 10.0, "overlong_buffer": 0.2},  # 2503.14476; SAMPLING below
    "gspo": {  # arXiv 2507.18071
        "loss": "gspo",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "loss_aggregation": "sequence_mean",
    },
    "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 4.0},  # 2506.13585; bound 5 of 2510.13786
    "m2po": {"loss": "m2po", "proximal": "rollout", "importance": "none"},  # arXiv 2510.01161
    "ppo": {"baseline": "value", "advantage_scale": "batch_std", "gae_lambda": 0.95},  # arXiv 1707.06347
    "sft": {  # given responses: advantage 1, no policy that sampled them (docs/sft.md)
        "baseline": "none",
        "advantage_scale": "none",
        "loss": "likelihood",
        "proximal": "rollout",
        "importance": "none",
    },
}
SAMPLING = {"dapo": "zero_variance"}
"""`staleness.filter` where an algorithm includes one (dynamic sampling)."""


def with_algorithm(values: dict[str, object]) -> dict[str, object]:
    """The keys of `trainer` as written, filled up from the algorithm that they name."""
    name = values.get("algorithm", "grpo")
    return {**ALGORITHMS.get(name if isinstance(name, str) else "", {}), **values}
