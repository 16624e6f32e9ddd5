"""The section `trainer`.

Invariant: what a preset of `trainer.algorithm` sets is filled in before anything is checked; a key that is
written out counts instead.
"""

from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from protocol.algorithms import with_algorithm
from protocol.section import Section
from protocol.trainer.adapters import LoraSettings


def _shares(betas: tuple[float, float]) -> tuple[float, float]:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError("expected two numbers from 0 to below 1, such as [0.9, 0.95]")
    return betas


class TrainerSettings(Section):
    """Optimization."""

    engine: str = "fsdp"
    """`fsdp`, or an import path `module:Class` of a class with what `TrainerEngine` in
    workers/trainer/interface.py names."""
    algorithm: Literal[
        "grpo", "dr_grpo", "rloo", "reinforce", "reinforce_pp", "dapo", "gspo", "cispo", "m2po", "ppo", "sft"
    ] = "grpo"
    """Preset of the keys of the algorithm below; a key that is written out counts instead. See
    docs/algorithms.md for the table. `sft` trains on the responses of the data instead, without rollout and
    reward (docs/sft.md)."""
    baseline: Literal["group_mean", "leave_one_out", "batch_mean", "value", "none"] = "group_mean"
    """What a reward is compared with: the mean of its group, of the others of its group, of all response
    tokens of the batch; or, per token, the value that a critic expects (GAE)."""
    advantage_scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What advantages are divided by: the deviation of the group's rewards; that over the response tokens of
    the batch, after their mean is taken off; or nothing."""
    overlong_buffer: float = Field(default=0.0, ge=0, le=1)
    """Share of `rollout.max_response_tokens` at its end over which a penalty for length grows linearly (DAPO:
    0.2); 0 is none. Of the source's own `max_response_tokens` where it has one."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """What a response of full length loses, in units of the reward."""
    mask_truncated: bool = False
    """Leave responses that were cut off at full length out of the loss (they still count in its divisor); of
    an agent, whole episodes that did not end by themselves: that came to `agent.max_turns` or to a limit of
    tokens, that ended with a cut turn, or whose environment was silent for too long."""
    batch_groups: int = Field(default=32, ge=1)
    """Groups that one policy version is trained on (the paper's buffer size)."""
    streaming: bool = False
    """Begin forward and backward on groups that are certain to be in the next batch while it waits for its
    stragglers; the step is taken when it is complete, and is the same but for rounding. Off, because a batch
    that comes in parts is packed less densely, and an algorithm that looks at the whole batch cannot use it
    (docs/trainer.md)."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps that one batch is split into; together they make one policy version."""
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(default=0, ge=0)
    """Train steps over which the learning rate rises linearly from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stays, or falls to `lr_end`, where it is after the
    last of `run.steps`. It depends on the step alone, so a run that goes on to other `run.steps` falls
    towards those."""
    lr_end: float = Field(default=0.0, ge=0, le=1)
    """Share of `lr` that `linear` and `cosine` fall to."""
    betas: Annotated[tuple[float, float], AfterValidator(_shares)] = Field(default=(0.9, 0.95), strict=False)
    """AdamW: how much of the running means of the gradient and of its square each step keeps, from 0 to below
    1."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Added to the root of AdamW's second moment: larger damps weights whose gradients are tiny."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    lora: LoraSettings = LoraSettings()
    """Train an adapter instead of the model; see docs/trainer.md."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient of one optimizer step."""
    loss: str = "ppo"
    """`ppo` clips the ratio of each token, `gspo` that of each response, `cispo` clips it as a constant
    weight, `m2po` leaves out the tokens that have moved farthest, `reinforce` does not clip, `likelihood`
    (sft) knows no ratio; or an import path `file.py:function` of a loss of your own."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The policy ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The policy ratio is clipped at 1 + clip_high; above clip_low it is DAPO's asymmetric clip."""
    second_moment: float = Field(default=0.04, gt=0)
    """`m2po`: largest mean square of log ratios to the policy that sampled, over what is kept."""
    dual_clip: float = Field(default=0.0, ge=0)
    """A token with negative advantage costs at most this many times the advantage, above 1; 0: no bound."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "group_mean"] = "token_mean"
    """Mean over all response tokens of the mini-batch; over responses, or groups, of their token means; or
    token sums over `rollout.max_response_tokens`, averaged over responses (Dr.GRPO)."""
    proximal: Literal["recompute", "rollout", "loglinear"] = "recompute"
    """Centre of the trust region: logprobs of the weights just before the update (decoupled PPO; one more
    forward pass if there are several minibatches), the engine's, or a point between the two by version."""
    importance: Literal["truncate", "mask", "taper", "none"] = "truncate"
    """Weight exp(proximal_logprobs - rollout_logprobs): held within its bounds; 0 outside of them (IcePop);
    at most 1 for negative advantages, and 1 for others (TOPR); or not applied. It is 1 where `proximal` is
    `rollout`."""
    importance_level: Literal["token", "sequence"] = "token"
    """A weight per token, or per response the product over its tokens: exact, but of larger variance."""
    importance_low: float = Field(default=0.0, ge=0, le=1)
    """Lower bound of the weight (IcePop: 0.5)."""
    importance_cap: float = Field(default=2.0, ge=1)
    """Upper bound of the weight (IcePop: 5); `taper` has 1."""
    rejection: Literal["none", "token", "sequence", "group"] = "none"
    """What is judged as a whole when the policy that is trained has moved too far from the one that
    sampled."""
    rejection_action: Literal["mask", "drop", "clip"] = "mask"
    """Leave the unit out; leave out what contains it too (a token's response, a response's group); or scale
    its loss back to the bound (`ratio` only), which makes it larger below the lower bound; with a lower bound
    of 0 it only makes it smaller."""
    rejection_metric: Literal["ratio", "k1", "k2", "k3"] = "ratio"
    """Ratio of the policies, or an estimate of KL(rollout, trained) in nats."""
    rejection_aggregate: Literal["mean", "sum", "max"] = "mean"
    """Of the tokens of a unit; ratios in log space."""
    rejection_bounds: tuple[float, float] = Field(default=(0.5, 2.0), strict=False)
    """Range of the metric that is kept."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of KL(policy, initial model); above 0 it costs a frozen copy of it and its forward pass."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts: in each token's loss, or in the reward of each token and those before it."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """k3 is unbiased and never negative, k2 has the exact gradient in the loss, k1 is for the reward
    only."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy, in nats per token, that is added to the objective."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token of rewards that come later, where advantages are made per token (a critic, KL in the
    reward)."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """With a critic: 1 trusts rewards alone, 0 the critic's next value alone."""
    critic_lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate of the critic, which is made if `baseline` is `value`."""
    value_clip: float = Field(default=0.2, gt=0)
    """A value is trained no further than this from what it was before the update, in units of the
    reward."""
    logprob_gap_warning: float = Field(default=1.0, gt=0)
    """Warn when the p99 of |rollout_logprobs - proximal_logprobs| of a batch is above this (nats), or five
    times its running median: the engine does not sample from the weights that the trainer believes in. An
    engine at another temperature, or that cuts tokens off, is warned of below it (docs/algorithms.md)."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Token budget of one packed forward pass: bounded by memory. A single longer sequence gets one of its
    own."""
    forward_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward and backward pass; weights, optimizer and the sum of gradients stay float32.
    `auto`: bfloat16 on a GPU if `model.dtype` is, else float32."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer and compute the rest again in the backward pass: about a third more
    arithmetic, for activations that no longer grow with what a layer holds inside."""
    reduce_gradients: Literal["auto", "every_microbatch", "every_step"] = "auto"
    """When gradients cross the network between several ranks. `every_step`: with the last micro-batch of an
    optimizer step; until then each rank holds the whole gradient in float32. `every_microbatch`: each rank
    holds its share only, and more is sent. `auto`: every micro-batch if a whole gradient is above 1 GiB."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer in host memory, and only the layer in use on the GPU. Steps are
    bound by PCIe then; try more `ranks` and `activation_checkpointing` first. Needs a GPU."""
    ranks: int = Field(default=1, ge=1)
    """Local trainer processes, sharded by FSDP2."""
    sequence_ranks: int = Field(default=1, ge=1)
    """Ranks that share each packed row, so that a sequence may be that much longer in the same memory: a rank
    has some of its tokens, and in attention some heads of all of them. It divides `ranks` and the model's
    heads; not with a critic or LoRA. `max_tokens_per_microbatch` counts a rank's own tokens."""
    local: bool = True
    """Start the trainer with the run. Off: it attaches from outside, `torchrun ... -m workers.host ADDRESS
    --role trainer`, and may be lost and come again (docs/clusters.md); `ranks` is torchrun's to say then."""
    device: str = "auto"
    """`cpu`, `cuda`; `auto` takes GPUs if there are any, the first ones, one for each rank."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per rank."""
    checkpoint_steps: int = Field(default=20, ge=0)
    """Save a checkpoint every so many train steps, and at the end; 0 saves at the end, and every 200 steps.
    Training goes on while its files are written; one that falls due meanwhile is left out. The batches since
    the last one are kept on disk, for a trainer that is lost: a smaller number costs time, a larger one disk
    and a longer recovery."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept, and with them the batches since the oldest: if the newest is damaged,
    the run goes on from the one before it."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: object) -> object:
        return with_algorithm(cast("dict[str, object]", values)) if isinstance(values, dict) else values

    @property
    def is_supervised(self) -> bool:
        """Whether responses come out of the data: no rollout, no rewards, no staleness."""
        return self.algorithm == "sft"
