"""How often trainer and engine send a token to the same experts: `python -m benchmarks.router_agreement`.

A tiny Qwen3-MoE of random weights samples responses on an engine; the choices of its routers are held against
those of a plain pass over the same tokens, in the precision of the trainer. Where they differ, the importance
weight of the token shows it, as every other difference of two computations.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    VllmSettings,
    WorkerSettings,
)
from workers.engines.interface import Engine, Generation
from workers.rollout.worker import make_engine

LAYERS, EXPERTS, CHOSEN, PROMPT, RESPONSE = 4, 16, 4, 8, 56
Choices = list[torch.Tensor]
"""Of each call of a router: the experts of each row, ascending, [rows, CHOSEN]."""


def write_model(folder: str) -> None:
    """A mixture whose routers are not all alike."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, intermediate_size=256, moe_intermediate_size=64,
        num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=True, initializer_range=0.1,
        max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def settings(name: str, dtype: str) -> WorkerSettings:
    """What a rollout worker would be told; one response at a time, so that rows come in order."""
    return WorkerSettings(
        run_dir=".", seed=0, steps=1, model=ModelSettings.model_validate({"dtype": dtype}),
        reward=RewardSettings(), trainer=TrainerSettings(),
        rollout=RolloutSettings(
            engine=name, max_running=1, max_prompt_tokens=PROMPT, max_response_tokens=RESPONSE,
            vllm=VllmSettings(has_own_process=False),  # its routers are looked at
        ),
    )  # fmt: skip


def watched(model: Any) -> dict[str, Choices]:
    """What the routers of a model choose from now on, by the name of their layer."""
    found: dict[str, Choices] = {}

    def hook(name: str) -> Callable[..., None]:
        found[name] = []

        def note(_: Any, __: Any, output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            chosen = logits.detach().float().reshape(-1, EXPERTS).topk(CHOSEN).indices
            found[name].append(chosen.sort(-1).values)

        return note

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(hook(name))
    return found


def model_of(engine: Any) -> Any:
    """The torch module that an engine of this process runs."""
    if hasattr(engine, "llm"):
        return engine.llm.model_executor.driver_worker.worker.model_runner.get_model()
    return engine._model


def sampled(engine: Engine, number: int) -> list[int]:
    """A prompt and its response."""
    draw = torch.Generator().manual_seed(number)
    prompt = torch.randint(256, (PROMPT,), generator=draw).tolist()
    engine.add(Generation((number, 0, 0), prompt, [], RESPONSE, number))
    tokens = list(prompt)
    while engine.is_busy():
        tokens += [item.token for item in engine.step()]
    return tokens


def agreement(name: str, dtype: str, folder: str, responses: int) -> tuple[float, float]:
    """The share of routings that are the same in all experts, and of experts that both chose."""
    engine = make_engine(settings(name, dtype), folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    theirs, ours = watched(model_of(engine)), watched(plain)
    same = shared = total = 0
    for number in range(responses):
        for found in (*theirs.values(), *ours.values()):
            found.clear()
        tokens = sampled(engine, number)
        with torch.no_grad():
            plain(torch.tensor([tokens]), use_cache=False)
        for layer, calls in theirs.items():
            # padding stands behind a prefill's own rows, and each later call is one token
            rows = torch.cat([calls[0][: len(tokens) - len(calls)], *calls[1:]])
            plain_rows = ours[layer][0][: len(rows)]
            is_there = (rows[:, :, None] == plain_rows[:, None, :]).any(-1)
            same += int(is_there.all(-1).sum())
            shared += int(is_there.sum())
            total += len(rows)
    return same / total, shared / total / CHOSEN


def main() -> None:
    """Print a line for each engine and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["torch"])
    parser.add_argument("--responses", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, load {load:.1f}; {LAYERS} layers, {CHOSEN} of {EXPERTS} experts")
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        for name in options.engines:
            for dtype in ("float32", "bfloat16"):
                same, shared = agreement(name, dtype, folder, options.responses)
                words = f"{same:.2%} of routings the same, {shared:.2%} of experts"
                print(f"{name}, {dtype}: {words}", flush=True)


if __name__ == "__main__":
    main()
