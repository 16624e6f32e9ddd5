"""The sections of the configuration that travel to workers, so that a remote worker needs no file of its own.

Invariants: every model is frozen, strict and refuses unknown keys; a field's docstring gives its unit, its
range, why its default is what it is, and what changing it does. `controller.config` adds the sections that
stay at home.
"""

import ipaddress
from operator import not_
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from protocol.agents.settings import AgentSettings
from protocol.algorithms import with_algorithm
from protocol.rewards.settings import RewardSettings
from protocol.section import Section
from protocol.trainer.adapters import LoraSettings

FASTEST_PROGRESS_S = 0.5  # with `rollout.progress_s: auto`
FASTEST_STATUS_S, SLOWEST_STATUS_S = 0.1, 1.6  # with `rollout.status_s: auto`


def _shares(betas: tuple[float, float]) -> tuple[float, float]:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError("expected two numbers from 0 to below 1, such as [0.9, 0.95]")
    return betas


class ModelSettings(Section):
    """The policy: a Hugging Face causal language model on disk."""

    path: str = "model"
    """Directory with config.json, weights and tokenizer. Relative paths are looked up in the run directory if
    `factory` is set, else in the working directory."""
    factory: str | None = None
    """Import path `module:function` or `file.py:function` of `make(directory, *, seed, progress)`, called
    once in a process of its own when `path` does not exist yet, so that a run needs no download. Another run
    begins with what it made, and does not make it again: `model.factory= model.path=RUN/model`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the rollout engine's weights and of the published versions."""


class SamplingSettings(Section):
    """The distribution that responses are drawn from, and that rollout_logprobs are of."""

    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    """Divides the logits, of the engine and of the trainer alike, so any value above 0 is exact (on vLLM from
    0.01 to 2); 0 is greedy, which evaluation may be and the trainer refuses. 1 keeps the policy's own
    distribution."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of tokens with at least this probability; 1 keeps all. Below 1 the engine tells
    which tokens it kept, and the trainer trains the distribution over them, so importance weights stay right
    (docs/algorithms.md). An engine that cannot tell is refused."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k most probable tokens, before `top_p`; 0 keeps all. Trained as with `top_p`."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens with at least this share of the most probable one's probability, after `top_p` (on vLLM
    before `top_k`); 0 keeps all. Trained as with `top_p`."""
    min_tokens: int = Field(default=0, ge=0)
    """Draw no stop token, and look for no `stop` string, before a response has this many tokens; a string
    that an earlier token completes does not count, then or later. Trained as with `top_p`: without the stop
    tokens there."""
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=16, strict=False
    )
    """Strings that end a response where they appear in its text, beside the tokenizer's stop tokens; they
    stay part of it, and are trained."""

    @property
    def is_cut(self) -> bool:
        """Whether a token may be drawn from a part of the vocabulary."""
        is_narrowed = self.top_p < 1 or self.top_k > 0 or self.min_p > 0
        return self.temperature > 0 and (is_narrowed or self.min_tokens > 0)

    @property
    def is_cut_unbounded(self) -> bool:
        """Whether top-p or min-p cut without a top-k that bounds how many tokens they keep."""
        return self.is_cut and not self.top_k and (self.top_p < 1 or self.min_p > 0)


class VllmSettings(Section):
    """vLLM, where `rollout.engine` is `vllm`."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """Devices that one instance is spread over. More replicas are more `rollout.instances`, each of which
    updates by itself."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU that weights and KV cache may take. Lower it where trainer and rollout share one."""
    has_own_process: bool | None = None
    """Run vLLM's engine core in a process of its own, which steps on while the worker reads and answers. Off:
    in the worker's, which stands still for every step. Unset: on a GPU; on a CPU the second process costs
    tokens per second (docs/engines.md)."""
    kv_cache_gb: float | None = Field(default=None, gt=0)
    """GB (1e9 bytes) of KV cache per device. Unset: on a GPU what `gpu_memory_utilization` leaves, on a CPU
    what `rollout.max_running` responses of full length take. Too little costs preemptions, which are
    counted."""
    is_eager: bool | None = None
    """Run without compilation and CUDA graphs: a faster start, slower steps. Unset: only on a CPU."""
    is_seeded: bool = True
    """Give every response a random generator of its own, so that equal seeds give equal responses. Off: one
    for the whole batch, which saves a kernel launch per response and step on a GPU."""
    engine_args: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further arguments of vLLM's `EngineArgs`, passed as they are, e.g. `{max_num_batched_tokens: 8192}`.
    What this configuration sets elsewhere is refused."""


class RolloutSettings(Section):
    """Generation."""

    engine: str = "torch"
    """`torch`, `vllm`, or an import path `module:make` of a factory of engines with the interface of
    workers/engines/interface.py; see docs/engines.md."""
    vllm: VllmSettings = VllmSettings()
    """Options of the engine `vllm`."""
    instances: int = Field(default=2, ge=0)
    """Local rollout workers that the run starts by itself. 0: only workers that attach from outside."""
    group_size: int = Field(default=8, ge=1, le=4096)
    """Responses per prompt. Group-normalised advantages need at least 2."""
    max_prompt_tokens: int = Field(default=512, ge=1, le=2**24)  # above any context
    """A longer prompt is refused, counted and named."""
    max_response_tokens: int = Field(default=512, ge=1, le=2**24)
    """A response that reaches this many tokens ends with `length`."""
    max_running: int = Field(default=64, ge=1)
    """Trajectories in one instance's decode batch: bounded by memory for the KV cache."""
    sampling: SamplingSettings = SamplingSettings()
    """Temperature, top-p, top-k, min-p, stop strings."""
    progress_s: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Seconds between two reports of unfinished responses; a lost worker's unreported tokens are made again.
    `auto`: 0.5 to 2, so that the controller hears of 8,192 responses a second; a `status_s` that is a number
    is stretched with it."""
    status_s: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Seconds between two load reports of a busy instance; an instance that runs dry reports at once.
    `auto`: 0.1 to 1.6, so that the controller gets 256 a second."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU if there is one."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per instance. More processes with one thread each beat fewer with several on small
    models."""

    @property
    def first_progress_s(self) -> float:
        """As long as the controller says nothing else."""
        return FASTEST_PROGRESS_S if self.progress_s == "auto" else self.progress_s

    @property
    def first_status_s(self) -> float:
        """As long as the controller says nothing else."""
        return FASTEST_STATUS_S if self.status_s == "auto" else self.status_s

    @property
    def slowest_status_s(self) -> float:
        """What the controller may let it become."""
        return SLOWEST_STATUS_S if self.status_s == "auto" else self.status_s


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
    """`cpu`, `cuda`; `auto` takes a GPU if there is one."""
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


def network_of(said: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The network of which a host is told to take its own address; that of one address, if it is told that.

    None if it is neither, or an address that no single host has: any (`0.0.0.0`, `::`), a group, or all.
    """
    try:
        network = ipaddress.ip_network(said, strict=False)
    except ValueError:
        return None
    is_nobodys = network.is_unspecified or network.is_multicast or said == "255.255.255.255"
    return None if network.num_addresses == 1 and is_nobodys else network


class WeightsSettings(Section):
    """Policy versions on their way from the trainer to the engines; see docs/weights.md."""

    directory: str = "auto"
    """Folder for versions on each host. `auto`: shared memory where it has room for four versions, else the
    run directory; or a path, such as a fast local disk."""
    host: str = ""
    """Address at which workers hand versions to other hosts: one address, which counts on the host that has
    it, or a network such as `10.0.0.0/16`, of which every host takes its own. Empty: the address of
    `controller.bind` on the controller's host, elsewhere that from which the worker reaches the controller. A
    worker may have its own: `weights.host=...` after `launch.py attach`, or STALEFLOW_ADDRESS. Names of hosts
    and devices are refused, and what no single host has, such as `0.0.0.0`."""
    fan_out: int = Field(default=2, ge=1, le=64)
    """Hosts that get a version from the same source; what a host has, it hands on. 2 keeps the trainer's link
    at twice the size of a version, however many hosts there are; 1 is a chain."""
    window_mb: int = Field(default=16, ge=1, le=1024)
    """Megabytes that a host asks for ahead. At least bandwidth times round trip: 16 fills 100 Gb/s over 1 ms.
    The sender's memory is bounded by this for each host that it serves."""
    deltas: bool = True
    """Send to another host what differs from the newest version that it has, where that is less: exact, and
    checked like the whole. Each host keeps one more version for it, where there is room."""


class WorkerSettings(Section):
    """What Welcome carries. `extras` are import search paths and the like that only the launcher knows."""

    run_dir: str
    seed: int
    steps: int
    model: ModelSettings
    rollout: RolloutSettings
    reward: RewardSettings
    trainer: TrainerSettings
    agent: AgentSettings = AgentSettings()
    template_kwargs: dict[str, object] = Field(default_factory=dict, exclude_if=not_)
    """`data.chat_template_kwargs`: what an agent's template is tried with. Each row has its own.

    Not told where there are none: so runs of before it was there are replayed bit for bit.
    """
    evaluation_sampling: SamplingSettings = SamplingSettings()
    evaluation_function: str = ""
    """Scores held-out responses; "" is `reward.function`."""
    weights: WeightsSettings = WeightsSettings()
    keeps_kv: bool = False  # `staleness.keep_kv`
    is_colocated: bool = False  # `placement: colocated`
    import_paths: tuple[str, ...] = ()
    """Directories put on sys.path before user code is imported."""
    bind_host: str = ""
    """The address of `controller.bind`, if it is one that other hosts reach."""
    newest_version: int | None = None
    """What the run has made, told to trainers: a checkpoint beyond it is not of this history. None: any."""
    is_private: bool = False
    """Whether what this worker writes is for the run's user only."""
    reattach_s: float = 300.0
    """Seconds for which a worker that was attached by hand looks for a controller that is gone."""


def load_settings(text: str) -> WorkerSettings:
    """The settings out of a Welcome. Raises: pydantic.ValidationError if they are of another release."""
    return WorkerSettings.model_validate_json(text, strict=False)
