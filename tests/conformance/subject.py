"""What the conformance kit does with an engine: makes it, runs it to the end, and knows the right logprobs.

Invariant: engines are made once per kind of settings and handed out idle, under version 0 and its weights.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from simulated_subject import make_simulated
from transformers import PreTrainedModel

from protocol.engines import ENGINES
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    VllmSettings,
    WorkerSettings,
)
from workers.engines.interface import Engine, Generation, Key, RunsByItself, Sampled
from workers.models.model import load_causal_lm
from workers.rollout.worker import make_engine

VOCABULARY, CONTEXT, STOP = 48, 128, 5
PROMPT_TOKENS = (
    40  # of every prompt but where a test says otherwise: two whole blocks of 16 tokens or one of 32
)
CAPACITY = 4
MOST_STEPS = 2000  # that anything here takes
Tokens = dict[Key, list[Sampled]]


OURS = (*ENGINES, "simulated")


class Subject:
    """One engine under test, by the name that `rollout.engine` has for it."""

    def __init__(self, name: str, model_directory: Path) -> None:
        self.name = name
        self.is_ours = name in OURS
        self.first_version: int | None = None  # of the first engine that was made, as it came
        self._directory = model_directory
        self._made: dict[Any, Engine] = {}
        self._plain: dict[str, PreTrainedModel] = {}

    def engine(self, *, dtype: str = "float32", stops: bool = False, **sampling: Any) -> Engine:
        """The engine for these settings, idle and under the weights of version 0."""
        kind = (dtype, stops, *sorted(sampling.items()))
        if kind not in self._made:
            folder = self._directory.parent / "stopping" if stops else self._directory
            is_plain = kind == ("float32", False)
            chosen = settings(self.name, dtype=dtype, has_own_process=is_plain, **sampling)
            self._made[kind] = self._make(chosen, str(folder))
            if self.first_version is None:
                self.first_version = self._made[kind].policy_version
        engine = self._made[kind]
        if engine.policy_version:
            engine.load_weights(0, self.weights(dtype))
        assert not engine.is_busy(), "a new engine, or one that has finished all it was given, is busy"
        return engine

    def forget(self) -> None:
        """Let go of all engines: a test failed on one, which may be busy or broken now."""
        self._made.clear()

    def weights(self, dtype: str = "float32", seed: int = 0) -> dict[str, torch.Tensor]:
        """What a trainer publishes: the model's own weights, or, with a seed, others of the same size."""
        state = dict(self.plain(dtype).state_dict())
        state.pop("lm_head.weight", None)  # tied
        noise = torch.Generator().manual_seed(seed)
        scale = 0.1 if seed else 0.0
        return {
            name: (tensor + scale * torch.randn(tensor.shape, generator=noise)).to(tensor.dtype)
            for name, tensor in state.items()
        }

    def plain(self, dtype: str = "float32") -> PreTrainedModel:
        """The model, for plain forward passes. Nobody changes it."""
        if dtype not in self._plain:
            self._plain[dtype] = load_causal_lm(self._directory, dtype=dtype, device="cpu")
        return self._plain[dtype]

    def plain_under(self, weights: dict[str, torch.Tensor], dtype: str = "float32") -> PreTrainedModel:
        """A copy of the model under other weights."""
        model = load_causal_lm(self._directory, dtype=dtype, device="cpu")
        model.load_state_dict(weights, strict=False)
        return model

    def _make(self, chosen: WorkerSettings, folder: str) -> Engine:
        return make_engine(chosen, folder)


class WithoutModel(Subject):
    """The simulated engine: it schedules, and draws tokens out of thin air."""

    def _make(self, chosen: WorkerSettings, folder: str) -> Engine:
        return make_simulated(
            chosen, folder, prompt_tokens=PROMPT_TOKENS, vocabulary=VOCABULARY, context=CONTEXT
        )

    def weights(self, dtype: str = "float32", seed: int = 0) -> dict[str, torch.Tensor]:
        """Nothing: it has none."""
        return {}


def settings(engine: str, *, dtype: str, has_own_process: bool, **sampling: Any) -> WorkerSettings:
    """Settings of an engine that runs CAPACITY responses at once.

    `has_own_process`: of vLLM, of which the kit has both kinds; to start that one takes ten seconds more.
    """
    return WorkerSettings.model_validate(
        {
            "run_dir": ".",
            "seed": 0,
            "steps": 1,
            "model": ModelSettings.model_validate({"dtype": dtype}),
            "rollout": RolloutSettings(
                engine=engine,
                max_running=CAPACITY,
                max_prompt_tokens=CONTEXT // 2,
                max_response_tokens=CONTEXT // 2,
                sampling=SamplingSettings(**sampling),
                vllm=VllmSettings(engine_args={"block_size": 32}, has_own_process=has_own_process),
            ),
            "reward": RewardSettings(),
            "trainer": TrainerSettings(),
        }
    )


def generations(count: int, *, budget: int = 12, members: int = 1, seed: int = 0) -> list[Generation]:
    """`count` generations in groups of `members` siblings, each group with a prompt of its own."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(6, VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    return [
        Generation((i // members, i % members, 0), prompts[i // members], [], budget, 1000 + i)
        for i in range(count)
    ]


def finish(engine: Engine, *added: Generation) -> Tokens:
    """Run to the end; what was sampled, by key."""
    sampled: Tokens = {}
    if isinstance(engine, RunsByItself):
        engine.pause()  # so that all of them begin in one step, as where a step waits for its caller
    for generation in added:
        engine.add(generation)
    if isinstance(engine, RunsByItself):
        engine.resume()
    for item in until_idle(engine):
        sampled.setdefault(item.key, []).append(item)
    return sampled


def until_idle(engine: Engine) -> Iterable[Sampled]:
    """What every step samples, until there is nothing left to do."""
    for _ in range(MOST_STEPS):
        if not engine.is_busy():
            return
        yield from engine.step()
    raise AssertionError(f"the engine is still busy after {MOST_STEPS} steps")


def update(engine: Engine, policy_version: int, tensors: dict[str, torch.Tensor]) -> list[Sampled]:
    """Load these weights while generations run; returns what an engine that runs by itself had in flight."""
    if not isinstance(engine, RunsByItself):
        engine.load_weights(policy_version, tensors)
        return []
    engine.pause()
    before: list[Sampled] = []
    while not engine.is_settled():
        before += engine.step()
    engine.load_weights(policy_version, tensors)
    engine.resume()
    return before


def tokens(sampled: Tokens) -> dict[Key, list[int]]:
    """The token ids alone."""
    return {key: [item.token for item in items] for key, items in sampled.items()}


def resumed(generation: Generation, response: Sequence[int]) -> Generation:
    """The same generation, to go on after these response tokens with what is left of its budget."""
    return replace(
        generation, response_tokens=list(response), max_new_tokens=generation.max_new_tokens - len(response)
    )


def plain_logits(model: PreTrainedModel, generation: Generation, new: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] in float32 that each of `new` was drawn from, by one forward pass without a KV cache."""
    before = [*generation.prompt_tokens, *generation.response_tokens]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*before, *new]]), use_cache=False).logits[0].float()
    return logits[len(before) - 1 : -1]


def plain_logprobs(
    model: PreTrainedModel, sampled: Tokens, added: Iterable[Generation], temperature: float = 1.0
) -> torch.Tensor:
    """What a plain forward pass gives the tokens that were sampled for `added`, end to end."""
    found = []
    for generation in added:
        new = [item.token for item in sampled[generation.key]]
        logprobs = (plain_logits(model, generation, new) / temperature).log_softmax(-1)
        found.append(logprobs[torch.arange(len(new)), torch.tensor(new)])
    return torch.cat(found)


def worst_error(
    model: PreTrainedModel, generation: Generation, items: Sequence[Sampled], temperature: float = 1.0
) -> float:
    """Largest difference between reported logprobs and those of a plain pass over the whole sequence."""
    expected = plain_logprobs(model, {generation.key: list(items)}, [generation], temperature)
    return (expected - torch.tensor([item.logprob for item in items])).abs().max().item()
