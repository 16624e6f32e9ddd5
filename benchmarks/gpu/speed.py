"""Tokens per second, seconds of an update, memory and a whole run on a device."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from transformers import AutoConfig

from benchmarks.gpu.exactness import PROMPT, engine_settings, plain_model
from benchmarks.gpu.sizes import Finding, Size, wait, write_model
from benchmarks.packing import padded_batches
from benchmarks.tiny import make_message
from benchmarks.train_speed import our_trainer, plain_step
from controller.check.memory import memory_of
from controller.config.models import Config
from workers.engines.interface import Generation
from workers.models.model import stored_names
from workers.rollout.worker import make_engine
from workers.trainer.batch import read_batch
from workers.weights.store import VersionStore
from workers.weights.tensors import publish, read

ROOT = Path(__file__).resolve().parents[2]
TURNS = 3


def _dtype(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"


def decode_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """New tokens per second of the engines, beside `generate`, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size, dtype=getattr(torch, _dtype(device)))
        names = ["torch", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
        ways: dict[str, Callable[[int, int], float]] = {"generate": _generate(folder, device, size)}
        for name in names:
            ways[name] = _decode(
                make_engine(engine_settings(name, device, size, _dtype(device)), folder), size
            )
        for count in size.trajectories:
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(TURNS + 1):
                for name, way in ways.items():
                    rate = way(count, turn)
                    if turn:  # the first one warms up
                        rates[name].append(rate)
            found = {name: median(values) for name, values in rates.items()}
            beside = ", ".join(f"{name} {rate:,.0f}" for name, rate in found.items() if name != "torch")
            yield Finding(
                f"torch engine, {_dtype(device)}, {count} responses at once: tokens/s",
                f"{found['torch']:,.0f}", beside,
            )  # fmt: skip
        if "vllm" not in names:
            yield Finding("vLLM: tokens/s", "not installed in this environment")


def _decode(engine: Any, size: Size) -> Callable[[int, int], float]:
    def run(count: int, turn: int) -> float:
        draw = torch.Generator().manual_seed(1000 * turn + count)
        prompts = torch.randint(size.vocabulary, (count, PROMPT), generator=draw).tolist()
        began = time.perf_counter()
        for number, prompt in enumerate(prompts):
            engine.add(Generation((turn, number, 0), prompt, [], size.response, number))
        while engine.is_busy():
            engine.step()
        return count * size.response / (time.perf_counter() - began)

    return run


def _generate(folder: str, device: torch.device, size: Size) -> Callable[[int, int], float]:
    model = plain_model(folder, device, _dtype(device))
    model.set_attn_implementation("sdpa")

    def run(count: int, turn: int) -> float:
        draw = torch.Generator().manual_seed(1000 * turn + count)
        prompts = torch.randint(size.vocabulary, (count, PROMPT), generator=draw).to(device)
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
                max_new_tokens=size.response, pad_token_id=0,
            )  # fmt: skip
        wait(device)
        return count * size.response / (time.perf_counter() - began)

    return run


def update_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """Seconds to publish a version out of the device's memory, and to load it into an engine there."""
    dtype = _dtype(device)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=_shared()) as versions:
        parameters = write_model(Path(folder), size, dtype=getattr(torch, dtype))
        engine = make_engine(engine_settings("torch", device, size, dtype), folder)
        weights = {name: tensor.clone() for name, tensor in engine.read_weights().items()}
        store, seconds = VersionStore(Path(versions)), {"publish": [], "pull": [], "copy": []}
        for version in range(1, TURNS + 2):
            began = time.perf_counter()
            copies = [tensor.to("cpu", copy=True) for tensor in weights.values()]
            wait(device)
            seconds["copy"].append(time.perf_counter() - began)
            del copies
            began = time.perf_counter()
            published = publish(store, version, weights)
            seconds["publish"].append(time.perf_counter() - began)
            began = time.perf_counter()
            engine.load_weights(version, read(published.location, published.digest))
            wait(device)
            seconds["pull"].append(time.perf_counter() - began)
            store.retire(version)
        store.close()
        found = {name: median(values[1:]) for name, values in seconds.items()}
        size_mb = parameters * getattr(torch, dtype).itemsize / 1e6
        yield Finding(
            f"publish {size_mb:,.1f} MB: seconds", f"{found['publish']:.4f}",
            f"a plain copy to host memory: {found['copy']:.4f}",
        )  # fmt: skip
        yield Finding("verify and load it into the engine: seconds", f"{found['pull']:.4f}")


def _shared() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def step_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """Tokens per second of a train step beside a plain loop, its share of the peak, and its memory."""
    lengths = torch.linspace(24, size.longest, size.sequences).round().int().tolist()
    message = make_message(lengths)
    batch = read_batch(*message)
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        trainer, ours = our_trainer(folder, size.budget, message)
        seconds = _seconds(ours, batch, device)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        compute, estimate = dict(trainer.compute), _estimate(folder, size, trainer)
        del trainer, ours
        if device.type == "cuda":
            torch.cuda.empty_cache()
        plain = plain_step(folder, size.budget, device, padded_batches)
        with autocast:
            beside = _seconds(plain, batch, device)
    rate, other = (sum(lengths) / median(values[1:]) for values in (seconds, beside))
    share = compute.get("compute/mfu")
    yield Finding("train step: tokens/s", f"{rate:,.0f}", f"plain loop, sorted: {other:,.0f}")
    yield Finding(
        "train step: share of the device's peak (MFU)",
        f"{share:.1%}" if share else "the peak of this device is not known",
        f"{compute.get('compute/flops_per_s_per_device', 0) / 1e12:.3g} TFLOP/s",
    )  # fmt: skip
    yield Finding(
        "train step: peak memory", f"{peak / 1e9:.2f} GB" if peak else "counted on a card only",
        f"estimate of `check`, without activations: {estimate / 1e9:.3g} GB",
    )  # fmt: skip


def _estimate(folder: str, size: Size, trainer: Any) -> int:
    config = Config.model_validate({"trainer": {"max_tokens_per_microbatch": size.budget}})
    shape = AutoConfig.from_pretrained(folder).to_dict()
    weights = {name: tuple(trainer.model.get_parameter(name).shape) for name in stored_names(folder)}
    return sum(memory_of(config, shape, weights).rank.values())


def _seconds(step: Callable[[Any], object], batch: Any, device: torch.device) -> list[float]:
    """Of each turn; the first one warms up."""
    found = []
    for _ in range(TURNS + 1):
        began = time.perf_counter()
        step(batch)
        wait(device)
        found.append(time.perf_counter() - began)
    return found


def quickstart_rows(device: torch.device, size: Size) -> Iterator[Finding]:
    """The quickstart through `launch.py`, engine and trainer on the device."""
    with tempfile.TemporaryDirectory() as folder:
        steps = size.quickstart_steps
        overrides = [
            f"run.dir={folder}", f"run.steps={steps}", f"rollout.device={device}", f"trainer.device={device}",
            "rollout.instances=1", "logging.console=quiet", "run.resume=never",
        ]  # fmt: skip
        command = [sys.executable, "launch.py", "examples/quickstart.yaml", *overrides]
        began = time.perf_counter()
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        took = time.perf_counter() - began
        if ended.returncode:
            raise RuntimeError(" ".join((ended.stderr or ended.stdout).split())[-400:])
        lines = (Path(folder) / "quickstart" / "metrics.jsonl").read_text().splitlines()
        rewards = [json.loads(line)["reward/mean"] for line in lines if "reward/mean" in line]
        few = max(1, min(10, len(rewards) // 2))
        yield Finding(
            f"quickstart, {steps} steps: seconds with its start", f"{took:.0f}",
            f"first {few} rewards: {fmean(rewards[:few]):.3f}, last: {fmean(rewards[-few:]):.3f}",
        )  # fmt: skip
