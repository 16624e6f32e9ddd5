"""Tokens per second of the rollout engines beside `generate` of transformers, interleaved in one run.

Every engine gets the same prompts and budgets: lengths are mixed, so a batch thins out as responses end, and
what is measured is new tokens divided by the time until the last response is whole. `generate` pads the
prompts and runs one batch to its longest response. A stop token is never drawn. `--parity` prints instead how
far logprobs are from exact ones, before and after updates, and how far those of a plain forward pass are.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.engines.interface import Engine, Generation, Key
from workers.models.model import load_causal_lm
from workers.rollout.worker import make_engine

SHAPES = {  # hidden, intermediate, layers, heads, KV heads, head width, vocabulary
    "124k": (64, 192, 2, 4, 2, 32, 128),
    "1M": (128, 384, 4, 4, 2, 32, 512),
    "20M": (384, 1152, 8, 6, 2, 64, 8192),
}
PROMPT_TOKENS, SHORTEST, LONGEST = 32, 8, 128
UPDATES = 5


def make_model(folder: str, size: str) -> None:
    """A model of random weights on disk."""
    hidden, inner, layers, heads, kv_heads, width, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, tie_word_embeddings=True,
        max_position_embeddings=PROMPT_TOKENS + LONGEST, initializer_range=0.1, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


def settings(name: str, *, running: int, dtype: str = "float32") -> WorkerSettings:
    """What a rollout worker would be told."""
    rollout = RolloutSettings(
        engine=name, max_running=running, max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=LONGEST
    )
    model = ModelSettings.model_validate({"dtype": dtype})
    return WorkerSettings(
        run_dir=".", seed=0, steps=1, model=model, rollout=rollout, reward=RewardSettings(),
        trainer=TrainerSettings(),
    )  # fmt: skip


def load_of(count: int, vocabulary: int, turn: int) -> list[Generation]:
    """`count` generations of mixed lengths, with prompts that nobody has seen before."""
    draw = torch.Generator().manual_seed(1000 * turn + count)
    lengths = torch.linspace(SHORTEST, LONGEST, count).round().int().tolist() if count > 1 else [LONGEST]
    prompts = torch.randint(vocabulary, (count, PROMPT_TOKENS), generator=draw).tolist()
    return [Generation((turn, i, 0), prompts[i], [], lengths[i], i) for i in range(count)]


def run_engine(engine: Engine, load: list[Generation]) -> float:
    """Tokens per second."""
    began = time.perf_counter()
    for generation in load:
        engine.add(generation)
    count = 0
    while engine.is_busy():
        count += len(engine.step())
    assert count == sum(generation.max_new_tokens for generation in load)
    return count / (time.perf_counter() - began)


def run_generate(model: Qwen3ForCausalLM, load: list[Generation]) -> float:
    """Tokens per second that were asked for; those beyond a response's budget are waste."""
    prompts = torch.tensor([list(generation.prompt_tokens) for generation in load])
    longest = max(generation.max_new_tokens for generation in load)
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=longest,
            pad_token_id=0,
        )  # fmt: skip
    return sum(generation.max_new_tokens for generation in load) / (time.perf_counter() - began)


def measure(engines: list[str], folder: str, counts: list[int], turns: int) -> Iterator[dict[str, object]]:
    """One row per number of trajectories; medians over turns, in which the engines take turns."""
    plain = load_causal_lm(folder, dtype="float32", device="cpu")
    made = {name: make_engine(settings(name, running=max(counts)), folder) for name in engines}
    run: dict[str, Callable[[list[Generation]], float]] = {
        name: lambda load, engine=engine: run_engine(engine, load) for name, engine in made.items()
    }
    run["generate"] = lambda load: run_generate(plain, load)
    for one in run.values():
        one(load_of(2, plain.config.vocab_size, 0))
    for count in counts:
        rates: dict[str, list[float]] = {name: [] for name in run}
        for turn in range(1, turns + 1):
            for name, one in run.items():
                rates[name].append(one(load_of(count, plain.config.vocab_size, turn)))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        yield {
            "trajectories": count,
            "tokens_per_s": {name: round(rate) for name, rate in medians.items()},
            "ratio_to_torch": {name: round(rate / medians["torch"], 2) for name, rate in medians.items()},
        }


def parity(name: str, dtype: str, folder: str) -> dict[str, object]:
    """Errors of logprobs, largest and root mean square, under the weights of each update; and wrong tensors.

    Against a float32 pass of the very weights, for the engine and for a plain pass in the same precision.
    """
    engine = make_engine(settings(name, running=8, dtype=dtype), folder)
    errors: dict[str, list[float]] = {}
    wrong = 0
    for version in range(UPDATES + 1):
        model = load_causal_lm(folder, dtype=dtype, device="cpu")
        noise = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters() if version else ():
                parameter += 0.02 * torch.randn(parameter.shape, generator=noise).to(parameter.dtype)
        published = {key: value.detach().clone() for key, value in model.named_parameters()}
        if version:
            engine.load_weights(version, published)
        load = load_of(8, model.config.vocab_size, 1)
        sampled = _sample(engine, load)
        reported = torch.tensor([logprob for g in load for _, logprob in sampled[g.key]])
        plain, exact = _plain(model, load, sampled), _plain(model.float(), load, sampled)
        for what, error in (("engine", reported - exact), ("plain", plain - exact)):
            errors.setdefault(f"{what}_largest", []).append(error.abs().max().item())
            errors.setdefault(f"{what}_rms", []).append(error.square().mean().sqrt().item())
        held = engine.read_weights()
        wrong += sum(not torch.equal(held[key], value) for key, value in published.items())
    return {"engine": name, "dtype": dtype, **errors, "tensors_that_differ": wrong}


def _sample(engine: Engine, load: list[Generation]) -> dict[Key, list[tuple[int, float]]]:
    sampled: dict[Key, list[tuple[int, float]]] = {g.key: [] for g in load}
    for generation in load:
        engine.add(generation)
    while engine.is_busy():
        for item in engine.step():
            sampled[item.key].append((item.token, item.logprob))
    return sampled


def _plain(
    model: PreTrainedModel, load: list[Generation], sampled: dict[Key, list[tuple[int, float]]]
) -> torch.Tensor:
    """Logprobs of the sampled tokens by one forward pass each, end to end."""
    found = []
    for generation in load:
        new = torch.tensor([token for token, _ in sampled[generation.key]])
        whole = torch.tensor([[*generation.prompt_tokens, *new.tolist()]])
        with torch.no_grad():
            logits = model(input_ids=whole, use_cache=False).logits[0, PROMPT_TOKENS - 1 : -1].float()
        found.append(logits.log_softmax(-1).gather(-1, new[:, None])[:, 0])
    return torch.cat(found)


def main() -> None:
    """Print the machine, then a line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="1M")
    parser.add_argument("--engines", nargs="+", default=["torch", "vllm"])
    parser.add_argument("--trajectories", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parity", action="store_true")
    options = parser.parse_args()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    print(json.dumps(machine | {"threads": torch.get_num_threads(), "model": options.size}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, options.size)
        if options.parity:
            for name in options.engines:
                for dtype in ("float32", "bfloat16"):
                    print(json.dumps(parity(name, dtype, folder)), flush=True)
            return
        load = Path(folder).resolve().as_posix()
        for row in measure(options.engines, load, options.trajectories, options.turns):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
