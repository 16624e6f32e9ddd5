"""Compares the devices and, part by part, the memory that a run needs with those of this machine.

Invariant: the figures are upper bounds; activations, which depend on the model and on
`trainer.activation_checkpointing`, and the memory of libraries are left out.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from controller.check.lora import Shapes, adapter_parameters
from controller.config.devices.gpu_shares import gpu_findings
from controller.config.models import Config
from protocol.engines import ENGINES
from protocol.files import exists
from protocol.machine.visible_gpus import visible_gpus
from protocol.model_shape import kv_layers, text_shape
from protocol.trainer.memory import CHUNK_COPIES, CHUNK_ELEMENTS, GRADIENT, reduces_every_microbatch

BYTES = {"float32": 4, "bfloat16": 2}
MASTER, MOMENTS = 4, 8  # bytes for each weight that is trained, all float32
WHOLE_GRADIENT = "gradient, whole on each rank"
LAYER = re.compile(r"\.(\d+)\.")  # in a weight's name, the number of its layer
ANSWER_S = 10.0  # for nvidia-smi, which is slow on a machine of many GPUs
GPUS = (Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
"""Device files of the drivers of NVIDIA (also under Windows) and AMD."""
DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu|hpu|mtia|xla)(:\d+)?", re.ASCII)
"""Devices as built-in engines and the trainer take them: `auto`, or types of torch."""
MemoryFinding = tuple[Literal["error", "note"], str, str]
"""(level, field, text)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part of one rollout instance and of one trainer rank.

    `checkpoint`: further bytes of host memory that a rank holds while a checkpoint is written.
    """

    instance: Mapping[str, int]
    rank: Mapping[str, int]
    checkpoint: int


def memory_of(config: Config, shape: Mapping[str, Any], weights: Shapes) -> Memory:
    """Memory of the parts of a run; `shape` is the model's config.json, `weights` are shapes by name."""
    trainer, rollout = config.trainer, config.rollout
    parameters = sum(map(prod, weights.values()))
    width, ranks = BYTES[config.model.dtype], trainer.ranks
    instance = {"weights": parameters * width, "KV cache": _kv_bytes(config, shape)}
    trained, rank = parameters, {}
    if trainer.lora.rank:
        trained = adapter_parameters(config, weights)
        rank["frozen weights"] = parameters * _forward_width(config) // ranks
        engine = ENGINES.get(rollout.engine)
        if engine is not None and engine.merges_adapters:
            instance = {"weights merged with the adapter": parameters * width} | instance
    elif trainer.kl_coefficient > 0:
        rank["reference model"] = parameters * MASTER // ranks
    learners = trained + (parameters if trainer.baseline == "value" else 0)
    rank["weights"] = learners * MASTER // ranks
    rank["AdamW's moments"] = learners * MOMENTS // ranks
    if reduces_every_microbatch(trainer.reduce_gradients, weights=trained, ranks=ranks):
        rank["gradient"] = learners * GRADIENT // ranks
    else:
        rank[WHOLE_GRADIENT] = learners * GRADIENT
    rank["layers in passing"] = _passing_bytes(config, weights)
    rank["logits of a micro-batch with what is made of them"] = _logits_bytes(config, shape)
    return Memory(instance, rank, learners * (MASTER + MOMENTS) // ranks)


def memory_findings(config: Config, shape: Mapping[str, Any], weights: Shapes) -> Iterator[MemoryFinding]:
    """Notes with the memory of each part; errors for parts that do not fit into this machine."""
    memory, rollout, trainer = memory_of(config, shape, weights), config.rollout, config.trainer
    local = rollout.instances * (not trainer.is_supervised)
    instances = local * sum(memory.instance.values())
    ranks = trainer.ranks if trainer.local else 0
    logits = next(size for part, size in memory.rank.items() if part.startswith("logits"))
    trainers = ranks * (sum(memory.rank.values()) - logits)
    whole = max(instances, trainers) if config.is_colocated else instances + trainers
    text = (
        f"about {in_words(whole)} for weights, optimizer and KV cache: {local} instances of "
        f"{_parts(memory.instance)}; {'or' if config.is_colocated else 'and'} the trainer"
        f"{', whichever is more, as they use the same device in turn' if config.is_colocated else ''}."
    )
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not (_is_on_gpu(rollout.device) or _is_on_gpu(trainer.device)) and whole > host_bytes:
        yield (
            "error", "rollout.max_running",
            f"{text} This machine has {in_words(host_bytes)}; lower rollout.max_running or instances, or "
            "take a smaller model.",
        )  # fmt: skip
    else:
        yield "note", "rollout.max_running", text
    yield _trainer_finding(config, memory, host_bytes)
    if trainer.local and memory.checkpoint * trainer.ranks > host_bytes:
        yield (
            "note", "trainer.checkpoint_steps",
            f"the ranks copy {in_words(memory.checkpoint * trainer.ranks)} of weights and moments to host "
            f"memory for each checkpoint, more than the {in_words(host_bytes)} of this machine. Train an "
            "adapter (trainer.lora.rank) or a smaller model, or take a larger machine.",
        )  # fmt: skip


def _trainer_finding(config: Config, memory: Memory, host_bytes: int) -> MemoryFinding:
    """The memory of a rank; an error if it does not fit into its device or host."""
    need = sum(memory.rank.values())
    each = "each of the ranks" if config.trainer.ranks > 1 else "the trainer"
    text = (
        f"{each} takes {in_words(need)} and its activations: {_parts(memory.rank)}. While a checkpoint is "
        f"written it holds another {in_words(memory.checkpoint)} in host memory."
    )
    room, place = host_bytes // config.trainer.ranks, "this machine has for each"
    if _is_on_gpu(config.trainer.device):
        gpus = [] if config.trainer.cpu_offload else gpu_bytes()
        room, place = min(gpus, default=0), "a GPU of this machine has"
    if not (config.trainer.local and room and need > room):
        return "note", "trainer.ranks", text
    remedy = "Lower trainer.max_tokens_per_microbatch, take more trainer.ranks, or train an adapter"
    if memory.rank.get(WHOLE_GRADIENT, 0) > room:
        remedy = "Set trainer.reduce_gradients: every_microbatch, or train an adapter"
    text += f" That is more than the {in_words(room)} that {place}. {remedy} (trainer.lora.rank)."
    return "error", "trainer.ranks", text


def device_findings(config: Config) -> Iterator[MemoryFinding]:
    """Errors for devices that do not exist, or not on this machine, of processes that the run starts here."""
    rollout, trainer = config.rollout, config.trainer
    is_generated_here = rollout.instances and not trainer.is_supervised
    started = [
        ("rollout.device", rollout.device, is_generated_here, rollout.engine in ENGINES),
        ("trainer.device", trainer.device, trainer.local, trainer.engine == "fsdp"),
    ]
    for field, device, is_here, is_built_in in started:
        if is_here and is_built_in and not DEVICE.fullmatch(device):
            text = f"is `{device}`, which is no device of torch; expected auto, cpu, cuda or cuda:N."
            yield "error", field, text
        elif is_here and device.startswith("cuda") and not any(map(Path.exists, GPUS)):
            yield (
                "error", field,
                f"is `{device}`, and this machine has no GPU. Give `auto` or `cpu`; or start the worker on a "
                "machine that has one (`launch.py attach`).",
            )  # fmt: skip
    is_ours_here = trainer.local and trainer.engine == "fsdp" and trainer.device == "auto"
    if trainer.cpu_offload and is_ours_here and not any(map(Path.exists, GPUS)):
        text = "is true, and this machine has no GPU: all is in host memory already. Set it to false."
        yield "error", "trainer.cpu_offload", text
    yield from gpu_findings(config, visible_gpus(os.environ))


def gpu_bytes() -> list[int]:
    """Memory of each GPU of this machine; [] if there is none, or nvidia-smi does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None or not exists("/dev/nvidia0"):
        return []
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) << 20 for line in told.split() if line.isdigit()]


def in_words(count_bytes: int) -> str:
    """A number of bytes as text, in GB or MB."""
    return f"{count_bytes / 1e9:.1f} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.1f} MB"


def _parts(sizes: Mapping[str, int]) -> str:
    """Sizes with their names as text; the last one, which depends on lengths, is an upper bound."""
    words = [f"{in_words(size)} {part}" for part, size in sizes.items()]
    return f"{', '.join(words[:-1])} and up to {words[-1]}"


def _kv_bytes(config: Config, shape: Mapping[str, Any]) -> int:
    """KV cache of `rollout.max_running` responses of full length.

    Layers with a state in place of keys and values are left out: it does not grow with the length.
    """
    text, rollout = text_shape(shape), config.rollout
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or 0
    head_size = text.get("head_dim") or (text.get("hidden_size") or 0) // (
        text.get("num_attention_heads") or 1
    )
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    each = 2 * kv_layers(shape) * heads * head_size * BYTES[config.model.dtype]
    return each * longest * rollout.max_running


def _passing_bytes(config: Config, weights: Shapes) -> int:
    """Bytes of weights and gradients that FSDP holds unsharded during a micro-batch.

    These are the weights and gradients of one layer and of all tensors outside layers; on several ranks also
    the layer's weights as received, which gloo may hold a moment longer. On a GPU, which overlaps transfer
    and computation, also the weights of the next layer and the gradients of the one before."""
    layers: dict[str, int] = {}
    for name, shape in weights.items():
        number = LAYER.search(name)
        layers[number[1] if number else ""] = layers.get(number[1] if number else "", 0) + prod(shape)
    rest = layers.pop("", 0)
    width = _forward_width(config)
    largest, ranks = max(layers.values(), default=0), config.trainer.ranks
    if _is_on_gpu(config.trainer.device):
        return rest * width + 2 * (width + GRADIENT) * largest
    arrived = largest * width if ranks > 1 else 0
    return (rest + largest) * (width + GRADIENT) + arrived


def _logits_bytes(config: Config, shape: Mapping[str, Any]) -> int:
    """Bytes of logits of the largest micro-batch (the budget, or a longer response), at most a chunk."""
    rollout = config.rollout
    tokens = max(config.trainer.max_tokens_per_microbatch, rollout.max_response_tokens)
    elements = min(tokens * (text_shape(shape).get("vocab_size") or 0), CHUNK_ELEMENTS)
    return elements * CHUNK_COPIES * BYTES["float32"]


def _forward_width(config: Config) -> int:
    """Bytes of one number in the forward pass."""
    name = config.trainer.forward_dtype
    if name == "auto":
        name = config.model.dtype if _is_on_gpu(config.trainer.device) else "float32"
    return BYTES[name]


def _is_on_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and exists("/dev/nvidia0"))
