"""`max_staleness: 0` is a plain sequential loop: the same prompts, responses, rewards and losses."""

import json
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from made_model import TASK
from test_whole_runs import config

from controller import Controller
from protocol.importing import load_object
from protocol.messages import Segment, Train, TrainItem
from protocol.settings import WorkerSettings
from strategies.outcomes import group_advantages
from tests.support.published_state import state_of
from workers.engines.interface import Generation, Key
from workers.engines.torch import make_engine
from workers.trainer.trainer import Trainer

STEPS = 20


def sequential_losses(config, model: Path) -> list[tuple[float, float, list[int]]]:
    """(loss, mean reward, groups) of each step of the loop that a textbook would write."""
    from transformers import AutoTokenizer

    settings = WorkerSettings(
        run_dir=str(model.parent), seed=config.run.seed, steps=STEPS, model=config.model,
        rollout=config.rollout, reward=config.reward, trainer=config.trainer,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(model)
    reward = load_object(f"{TASK}:reward")
    rows = load_object(f"{TASK}:prompts")(seed=config.run.seed)
    engine, trainer = make_engine(settings, str(model)), Trainer(settings, str(model))
    out = []
    for step in range(STEPS):
        engine.load_weights(step, state_of(trainer))
        groups = list(range(step * config.trainer.batch_groups, (step + 1) * config.trainer.batch_groups))
        batch = list(islice(rows, len(groups)))
        prompts = [tokenizer(row["prompt"])["input_ids"] for row in batch]
        keys = [(g, m, 1) for g in groups for m in range(config.rollout.group_size)]
        for group, member, _ in keys:
            name = f"{config.run.seed}/{group}.{member}".encode()
            seed = int(blake2b(name, digest_size=8).hexdigest()[:13], 16)  # 52 bits
            prompt = prompts[group - groups[0]]
            engine.add(Generation((group, member, 1), prompt, [], config.rollout.max_response_tokens, seed))
        responses = _generate(engine, keys)
        items, rewards, frames = [], [], ([], [], [])
        for group, row, prompt in zip(groups, batch, prompts, strict=True):
            texts = [
                tokenizer.decode(responses[(group, m, 1)][0], skip_special_tokens=True)
                for m in range(config.rollout.group_size)
            ]
            scores = [float(reward(row["prompt"], text, row["answer"])) for text in texts]
            rewards += scores
            advantages = group_advantages(scores, baseline="group_mean", scale="group_std")
            for member, (score, advantage) in enumerate(zip(scores, advantages, strict=True)):
                tokens, logprobs, ending = responses[(group, member, 1)]
                segments = (Segment(1, step, len(tokens)),)
                items.append(TrainItem(group, member, len(prompt), score, advantage, ending[0], segments))
                frames[0].extend(prompt)
                frames[1].extend(tokens)
                frames[2].extend(logprobs)
        kinds = ("<i4", "<i4", "<f4")
        buffers = [np.array(f, dtype=k).tobytes() for f, k in zip(frames, kinds, strict=True)]
        metrics = trainer.train_step(Train(step, tuple(items)), buffers)
        out.append((metrics["loss"], sum(rewards) / len(rewards), groups))
    return out


def _generate(engine, keys) -> dict[Key, tuple[list[int], list[float], list[str]]]:
    """Tokens, logprobs and ending of each response, when the engine is done."""
    responses = {key: ([], [], []) for key in keys}
    while engine.is_busy():
        for sampled in engine.step():
            tokens, logprobs, ending = responses[sampled.key]
            tokens.append(sampled.token)
            logprobs.append(sampled.logprob)
            if sampled.ending:
                ending.append(sampled.ending)
    return responses


@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_a_synchronous_run_equals_the_textbook_loop(tmp_path):
    settings = config(
        tmp_path,
        run={"steps": STEPS},
        staleness={"max_staleness": 0},
    )
    async with Controller(settings) as controller:
        lines = [step.metrics async for step in controller.train()]
    expected = sequential_losses(settings, tmp_path / "run" / "model")
    assert [line["reward/mean"] for line in lines] == pytest.approx(
        [reward for _, reward, _ in expected], abs=1e-9
    )
    assert [line["loss"] for line in lines] == pytest.approx([loss for loss, _, _ in expected], abs=1e-6)
    made = json.loads((tmp_path / "run" / "model" / "made.json").read_text())
    assert made == {"seed": 0}
