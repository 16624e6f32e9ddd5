"""Supervised runs with real processes: the loss falls as in a plain transformers loop, also through kills."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from local_workers import local_workers
from made_model import TASK, lay_model
from test_whole_runs import left_behind
from transformers import AutoModelForCausalLM, AutoTokenizer

from controller import Controller
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay

BATCH, STEPS, COMPARED, LR = 4, 24, 5, 0.01


def rows(count: int) -> list[dict[str, str]]:
    """Right answers to the even-digits task, of different lengths."""
    source = random.Random(0)
    answers = ("".join(source.choices("02468", k=source.randint(1, 9))) for _ in range(count))
    return [{"question": f"{n % 100:02d}:", "answer": answer} for n, answer in enumerate(answers)]


def config(run_dir: Path, *, has_model: bool = True, **trainer) -> Config:
    if has_model:
        lay_model(run_dir / "run")
    data = run_dir / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows(BATCH * STEPS)))
    return Config.model_validate(
        {
            "run": {"dir": str(run_dir), "name": "run", "steps": STEPS},
            "model": {"factory": f"{TASK}:make_model"},
            "data": {
                "path": str(data),
                "columns": {"prompt": "question", "response": "answer"},
                "shuffle": False,
            },
            "trainer": {"algorithm": "sft", "batch_groups": BATCH, "lr": LR, **trainer},
            "logging": {"console": "quiet"},
        }
    )


def plain_loop(directory: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of the first steps, trained as transformers' users do: padded, -100, AdamW."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    source, losses = iter(rows(BATCH * STEPS)), []
    for _ in range(COMPARED):
        batch = list(islice(source, BATCH))
        prompts = [tokenizer(row["question"])["input_ids"] for row in batch]
        answers = [[*tokenizer(row["answer"])["input_ids"], tokenizer.eos_token_id] for row in batch]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        tokens, labels = [], []
        for prompt, answer in zip(prompts, answers, strict=True):
            padding = longest - len(prompt) - len(answer)
            tokens.append(prompt + answer + [tokenizer.pad_token_id] * padding)
            labels.append([-100] * len(prompt) + answer + [-100] * padding)
        mask = torch.tensor([[label != tokenizer.pad_token_id for label in row] for row in tokens]).long()
        loss = model(
            input_ids=torch.tensor(tokens), attention_mask=mask, labels=torch.tensor(labels), use_cache=False
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.state_dict()


async def test_the_first_steps_are_those_of_a_plain_loop_and_the_loss_goes_on_falling(tmp_path):
    settings = config(tmp_path, has_model=False, checkpoint_steps=COMPARED, keep_checkpoints=9)
    async with Controller(settings) as controller:
        lines = [step.metrics async for step in controller.train()]
        roles = {path.name for path in controller.run_dir.joinpath("logs").iterdir()}
    run = tmp_path / "run"
    losses, weights = plain_loop(run / "model")
    assert [line["loss"] for line in lines[:COMPARED]] == pytest.approx(losses, abs=1e-5)
    saved = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / f"step_{COMPARED}").state_dict()
    assert max((saved[name] - weights[name]).abs().max().item() for name in weights) < 1e-5
    assert len(lines) == STEPS
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert lines[0]["perplexity"] == pytest.approx(torch.tensor(losses[0]).exp().item(), abs=1e-4)
    assert roles == {"controller.log", "prepare.log", "reward-0.log", "trainer.log"}
    assert "Warning" not in (run / "logs" / "prepare.log").read_text()
    assert controller.summary["is_success"]
    assert controller.summary["tokens/trained"] == sum(len(row["answer"]) + 1 for row in rows(BATCH * STEPS))
    assert not list((run / "weights").glob("*"))  # nothing is published, since nobody pulls
    assert not left_behind()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_a_killed_trainer_costs_no_example_and_changes_no_loss(tmp_path, ranks):
    async with Controller(config(tmp_path)) as controller:
        undisturbed = [step.metrics["loss"] async for step in controller.train()]
    (tmp_path / "killed").mkdir()
    losses = []
    async with Controller(config(tmp_path / "killed", checkpoint_steps=4, ranks=ranks)) as controller:
        async for step in controller.train():
            losses.append(step.metrics["loss"])
            if step.policy_version == 6:
                local_workers("trainer")[0].kill()
    assert losses == pytest.approx(undisturbed, abs=1e-5)
    assert controller.summary["counts"]["trainer/steps_again"] >= 1
    with Recording(tmp_path / "killed" / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()
