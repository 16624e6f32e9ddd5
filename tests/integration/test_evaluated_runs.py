"""Held-out prompts are evaluated by real workers while training goes on, and over a controller's death."""

import json
from pathlib import Path

import pytest
from made_model import TASK
from test_killed_runs import run_until
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.story import story

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_evaluated_runs import evaluated
from tests.support.heard_program import say
from controller import Controller

async def main():
    async with Controller(evaluated(Path(sys.argv[1]), samples=64)) as controller:
        while True:
            await asyncio.sleep(0.01)
            say(controller.snapshot().evaluating)

asyncio.run(main())
"""


def evaluated(run_dir: Path, *, instances: int = 1, **evaluation) -> Config:
    rows = [{"question": f"{n:02d}:", "answer": "even", "kind": "low" if n < 3 else "high"} for n in range(5)]
    file = run_dir / "held_out.jsonl"
    rows.append({"question": "12:" * 200, "answer": "even", "kind": "high"})  # too long
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = config(run_dir, rollout={"max_prompt_tokens": 100, "instances": instances}).model_dump()
    tree["evaluation"] = {
        "every_steps": 2,
        "samples": 4,
        "threshold": 0.5,
        "data": {
            "file": {"path": str(file), "columns": {"prompt": "question"}, "source_column": "kind"},
            "drawn": {"path": f"{TASK}:prompts", "max_prompts": 3},
        },
        **evaluation,
    }
    return Config.model_validate(tree)


async def test_versions_are_evaluated_before_the_first_step_between_and_at_the_end(tmp_path):
    heard = []
    async with Controller(evaluated(tmp_path, instances=2), on_evaluation=heard.append) as controller:
        steps = [step.metrics async for step in controller.train()]
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert lines == heard == controller.evaluations
    versions = [line["policy_version"] for line in lines]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert versions[0] == 0
    assert versions[-1] == 6
    assert len(versions) + summary["counts"].get("evaluations/skipped", 0) == 4
    for line in lines:
        assert line["tokens/by_version"].keys() == {str(line["policy_version"])}
        assert (line["prompts"], line["failed"], line["responses"]) == (8, 1, 32)
        prompts = {name: one["prompts"] for name, one in line["sources"].items()}
        assert prompts == {"low": 3, "high": 2, "drawn": 3}
        assert "high, prompt 5: " in line["failures"][0]  # too long; it is named, and retried no more
        assert 0 <= line["pass@1"] <= line["pass@2"] <= line["pass@4"] <= 1
    assert summary["evaluation/first"]["pass@1"] == lines[0]["pass@1"]
    assert summary["evaluation/best"]["pass@1"] == max(line["pass@1"] for line in lines)
    assert summary["evaluation/last"]["policy_version"] == 6
    ends = ("trained", "aborted", "filtered", "lost", "evaluated", "in_flight")
    assert summary["tokens/generated"] == sum(summary[f"tokens/{end}"] for end in ends)
    assert summary["tokens/evaluated"] == sum(line["tokens"] for line in lines)
    assert summary["staleness/violations"] == 0
    assert [step["step"] for step in steps] == list(range(1, 7))
    with Recording(tmp_path / "run") as recording:
        verdict = replay(recording)
        assert verdict.is_equal, verdict
        assert verdict.commands["ReportEvaluation"] == len(lines)
        told = list(story(recording, 1 << 40))
    assert "held-out prompt 0, of low" in told[0]
    assert any("evaluates version 0" in line for line in told)
    assert not left_behind()


async def test_greedy_evaluation_with_a_reward_of_its_own_leaves_training_as_it_is(tmp_path):
    sampling = {"temperature": 0.0}
    settings = evaluated(tmp_path, samples=1, sampling=sampling, reward_function=f"{__file__}:length_reward")
    async with Controller(settings) as controller:
        steps = [step.metrics async for step in controller.train()]
    for line in controller.evaluations:
        assert line["reward/mean"] == line["response_length/mean"]  # a token is a character, or ends it
    assert all(0 <= step["reward/mean"] <= 1 for step in steps)
    assert any(step["reward/std"] > 0 for step in steps)  # training samples


def length_reward(completion_ids):
    """Tokens of the response."""
    return float(len(completion_ids))


@pytest.mark.costly
async def test_a_killed_controller_goes_on_with_its_evaluation(tmp_path):
    await run_until(tmp_path, "of 9 prompts", PROGRAM)
    async with Controller(evaluated(tmp_path, samples=64)) as controller:
        async for _ in controller.train():
            pass
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    versions = [line["policy_version"] for line in lines]
    assert versions[0] == 0
    assert versions[-1] == 6
    assert len(set(versions)) == len(versions)
    assert all(line["responses"] == 8 * 64 for line in lines)
    with Recording(tmp_path / "run") as recording:
        verdict = replay(recording)
    assert verdict.is_equal, verdict
    assert verdict.epochs == 2
