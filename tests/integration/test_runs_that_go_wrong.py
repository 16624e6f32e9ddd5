"""Real runs of which the learning goes wrong: each is named by its alarm wherever a person may look."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_model import TASK, lay_model

from controller.cli.main import main
from controller.view.shown_run import ShownRun

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(__file__).with_name("engines_at_odds.py")
LIMIT_S = 300.0
REWARDS = """
def same(completion):
    return 0.1

def variety(completion):
    return len(set(completion)) / 12

def of_the_prompt(prompt, completion):
    return int(prompt[0]) / 10
"""
NOTE = """
import json, sys
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(sys.argv[3:]) + "\\n")
"""


def run(folder: Path, **sections) -> tuple[Path, str]:
    """Train as a user does, with launch.py and a file: the run's folder, and what was on the console."""
    lay_model(folder / "run")
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "note.py").write_text(NOTE)
    tree = {
        "run": {"dir": str(folder), "name": "run"},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "reward": {"function": f"{TASK}:reward"},
        "rollout": {
            "instances": 1, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 12,
            "max_running": 64,
        },
        "trainer": {"batch_groups": 4, "lr": 0.01},
        "staleness": {"max_staleness": 2},
        "notify": {
            "command": [sys.executable, str(folder / "note.py"), str(folder / "told")], "events": ["alarm"],
        },
    }  # fmt: skip
    for section, keys in sections.items():
        tree[section] |= keys
    file = folder / "run.yaml"
    file.write_text(json.dumps(tree))  # which is YAML, too
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), str(file)],
        cwd=folder, env=os.environ | {"STALEFLOW_NO_INSTALL": "1", "OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return folder / "run", said


def alarms_on_the_page(folder: Path) -> dict[int, set[str]]:
    """By version, what the page Now names when one goes back to the step that made it."""
    shown = ShownRun(folder)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {step: {one["name"] for one in shown.now({"step": str(step)})["alarms"]} for step in steps}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "steps", "sections"),
    [
        pytest.param(
            "entropy collapse", 12,
            {
                "trainer": {"lr": 1.0}, "staleness": {"max_staleness": 0},
                "reward": {"function": "rewards.py:variety"},
            },
            id="far too large steps",
        ),
        pytest.param(
            "mismatch", 3,
            {"rollout": {"engine": f"{ENGINES}:make_at_own_temperature", "sampling": {"temperature": 0.7}}},
            id="an engine at another temperature",
        ),
        pytest.param(
            "mismatch", 12, {"rollout": {"engine": f"{ENGINES}:make_deaf"}, "trainer": {"lr": 0.03}},
            id="an engine with the first weights",
            marks=pytest.mark.thorough,
        ),
        pytest.param("no signal", 6, {"reward": {"function": "rewards.py:same"}}, id="a constant reward"),
        pytest.param(
            "no signal", 6, {"reward": {"function": "rewards.py:of_the_prompt"}},
            id="a reward of the prompt alone",
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_a_run_that_goes_wrong_is_named_on_console_page_status_and_by_news(
    tmp_path, capsys, name, steps, sections
):
    folder, said = run(tmp_path, run={"steps": steps}, **sections)
    assert f"ALARM, {name} (" in said
    seen = alarms_on_the_page(folder)
    assert name in set().union(*seen.values())
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [event for event, text in told if text.startswith(f"{name} (")] == ["alarm"]
    assert main(["status", str(folder)]) == 0
    assert (f"ALARM, {name} (" in capsys.readouterr().out) == (name in seen[max(seen)])
