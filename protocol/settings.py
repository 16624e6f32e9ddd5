"""The sections of the configuration that travel to workers, so that a remote worker needs no file of its own.

Invariants: every model is frozen, strict and refuses unknown keys; a field's docstring gives its unit, its
range, why its default is what it is, and what changing it does. `controller.config` adds the sections that
stay at home.
"""

import ipaddress
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from protocol.agents.settings import AgentSettings
from protocol.rewards.settings import RewardSettings
from protocol.section import Section
from protocol.trainer.settings import TrainerSettings

FASTEST_PROGRESS_S = 0.5  # with `rollout.progress_s: auto`
FASTEST_STATUS_S, SLOWEST_STATUS_S = 0.1, 1.6  # with `rollout.status_s: auto`


class ModelSettings(Section):
    """The policy: a Hugging Face causal language model on disk."""

    path: str = "model"
    """Directory with config.json, weights and tokenizer. Relative paths are looked up in the run directory if
    `factory` is set, else in the working directory, then beside the configuration."""
    factory: str | None = None
    """Import path `module:function` or `file.py:function` of `make(directory, *, seed, progress)`, called
    once in a process of its own when `path` does not exist yet, so that a run needs no download. Another run
    begins with what it made, and does not make it again: `model.factory= model.path=RUN/model`. A model
    outside of the run directory is never replaced, as other runs may need it."""
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
    """`cpu`, `cuda`, `cuda:1`; `auto` takes GPUs if there are any: of several, each instance gets its own
    (docs/setup.md)."""
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
    """Folder for versions on each host: a path, such as a fast local disk, or `auto`. `auto` is shared
    memory; where that has no room for four versions, a trainer takes the run directory, and another host
    /tmp."""
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
