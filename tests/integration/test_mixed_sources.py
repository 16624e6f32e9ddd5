"""A run of two sources, Parquet and JSONL, that is killed trains what the run that was not killed does."""

import json
from pathlib import Path

import pytest
from test_killed_runs import PROGRAM, run_until, trained
from test_whole_runs import config

from controller import Controller

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[parquet]'")

STEPS = 8
KILLED = PROGRAM.replace("test_killed_runs", "test_mixed_sources")
REWARD = """
def score(completion, source, answer):
    assert {"short": "a", "long": "b"}[source] == answer
    return float(len(completion) % 2)
"""


def settings(run_dir: Path):
    """At bound 0, where what is trained does not depend on timing."""
    from pyarrow import parquet

    folder = run_dir / "data"
    if not folder.exists():
        folder.mkdir(parents=True)
        rows = [{"q": f"{n}+{n}=", "answer": "a"} for n in range(40)]
        parquet.write_table(pa.Table.from_pylist(rows), folder / "short.parquet", row_group_size=8)
        lines = (json.dumps({"prompt": f"{n}+{n + 1}+{n + 2}=", "answer": "b"}) for n in range(30))
        (folder / "long.jsonl").write_text("\n".join(lines))
        (folder / "mine.py").write_text(REWARD)
    sources = [
        {"path": str(folder / "short.parquet"), "weight": 2, "prompt": "{q}"},
        {"path": str(folder / "long.jsonl")},
    ]
    return config(
        run_dir,
        run={"steps": STEPS},
        data={"path": "", "sources": sources, "schedule": "pass_rate"},
        reward={"function": f"{folder / 'mine.py'}:score"},
        staleness={"max_staleness": 0},
        trainer={"checkpoint_steps": 2, "importance": "none"},
    )


@pytest.mark.costly
async def test_two_sources_go_on_after_a_kill_as_if_nothing_had_been(tmp_path):
    for name in ("straight", "killed"):
        if name == "killed":
            await run_until(tmp_path / name, "step 4", KILLED)
        async with Controller(settings(tmp_path / name)) as controller:
            made = [step.policy_version async for step in controller.train()]
        assert made[-1] == STEPS
    assert made[0] > 1
    runs = [tmp_path / name / "run" for name in ("straight", "killed")]
    assert trained(runs[0]) == trained(runs[1])
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs]
    same = ("loss", "reward/mean", "tokens")
    assert [[line[key] for key in same] for line in lines[0]] == [
        [line[key] for key in same] for line in lines[1]
    ]
