"""Engine and trainer on a device against a plain float32 pass of transformers there."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.sizes import Finding, Size, write_model
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.plain_batches import plain_batch
from workers.engines.interface import Engine, Generation
from workers.rollout.worker import make_engine
from workers.trainer.packed_forward import choose_attention, forward_row, pack_row
from workers.trainer.policy import load_packed

PROMPT, LENGTHS = 16, (40, 200, 97)
DTYPES = ("float32", "bfloat16")


def engine_settings(name: str, device: torch.device, size: Size, dtype: str) -> WorkerSettings:
    """What a rollout worker of this benchmark is told."""
    return WorkerSettings(
        run_dir=".", seed=0, steps=1, model=ModelSettings.model_validate({"dtype": dtype}),
        reward=RewardSettings(), trainer=TrainerSettings(),
        rollout=RolloutSettings(
            engine=name, device=str(device), max_running=max(size.trajectories), max_prompt_tokens=PROMPT,
            max_response_tokens=size.response,
        ),
    )  # fmt: skip


def plain_model(folder: str, device: torch.device, dtype: str) -> Any:
    """The model as transformers has it, with its plainest attention."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    return model.to(device).eval()


def engine_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """How far the embedded engine's logprobs are from exact ones, and how far a plain pass is."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        exact = plain_model(folder, device, "float32")
        for dtype in DTYPES:
            engine = make_engine(engine_settings("torch", device, size, dtype), folder)
            plain = plain_model(folder, device, dtype)
            ours, theirs = (_error(engine, (plain, exact), which, size) for which in (0, 1))
            yield Finding(
                f"engine, {dtype}: error of a logprob, root mean square (largest)",
                f"{ours[0]:.1e} ({ours[1]:.1e})", f"plain pass in {dtype}: {theirs[0]:.1e} ({theirs[1]:.1e})",
            )  # fmt: skip


def _error(engine: Engine, models: Sequence[Any], which: int, size: Size) -> tuple[float, float]:
    plain, exact = models
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(size.vocabulary, (4, PROMPT), generator=draw).tolist()
    found: dict[Any, list[tuple[int, float]]] = {}
    for number, prompt in enumerate(prompts):
        found[(number, 0, which)] = []
        engine.add(Generation((number, 0, which), prompt, [], min(64, size.response), number))
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append((item.token, item.logprob))
    errors = []
    for prompt, drawn in zip(prompts, found.values(), strict=True):
        tokens = [token for token, _ in drawn]
        reference = _logprobs(exact, prompt, tokens)
        told = torch.tensor([logprob for _, logprob in drawn])
        errors.append((_logprobs(plain, prompt, tokens) if which else told) - reference)
    error = torch.cat(errors)
    return error.square().mean().sqrt().item(), error.abs().max().item()


@torch.no_grad()
def _logprobs(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    whole = torch.tensor([[*prompt, *tokens]], device=model.device)
    logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).cpu().gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def trainer_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """How far the gradient of a packed row is from that of plain float32 passes over one sequence each."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        rng = np.random.default_rng(0)
        tokens = [rng.integers(3, size.vocabulary, length) for length in LENGTHS]
        batch = plain_batch(tokens=tokens, positions=[np.arange(1, length) for length in LENGTHS])

        def packed(dtype: str) -> dict[str, torch.Tensor]:
            precision = getattr(torch, dtype)
            model = load_packed(Path(folder), device=device, forward_dtype=precision, dtype=precision)
            logits = forward_row(model, pack_row(batch, range(len(tokens)), device))
            targets = torch.cat([torch.from_numpy(one[1:]) for one in tokens]).to(device)
            logits.float().log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
            return _gradient(model)

        def plain(dtype: str) -> dict[str, torch.Tensor]:
            model = plain_model(folder, device, dtype)
            for one in tokens:
                row = torch.from_numpy(one).to(device)
                logits = model(input_ids=row[None], use_cache=False).logits[0, :-1]
                logits.float().log_softmax(-1).gather(-1, row[1:, None]).sum().backward()
            return _gradient(model)

        exact = plain("float32")
        for dtype in DTYPES:
            attention = choose_attention(device, getattr(torch, dtype))
            yield Finding(
                f"trainer, {dtype}, attention `{attention}`: error of the gradient, as a share of it",
                f"{_share(packed(dtype), exact):.1e}", f"plain passes: {_share(plain(dtype), exact):.1e}",
            )  # fmt: skip


def _gradient(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: weight.grad.float().cpu() for name, weight in named if weight.grad is not None}


def _share(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    size = torch.stack([gradient.norm() for gradient in exact.values()]).norm()
    error = torch.stack([(found[name] - gradient).norm() for name, gradient in exact.items()]).norm()
    return (error / size).item()
