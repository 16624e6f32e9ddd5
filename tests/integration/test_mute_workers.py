"""A real worker that beats and gives no token: its responses go on elsewhere, and another takes its place."""

import json
from pathlib import Path

import pytest
from test_killed_runs import check_whole
from test_whole_runs import config, left_behind

from controller import Controller

MOST_STEPS = 200  # the run ends sooner, once the instance is closed and another took its place


@pytest.mark.costly
async def test_an_engine_that_gives_no_token_costs_its_instance_and_not_the_run(tmp_path):
    engine = f"{Path(__file__).parent / 'mute_engine.py'}:make"
    said = []
    run = config(
        tmp_path,
        run={"steps": MOST_STEPS},
        rollout={"engine": engine, "instances": 2, "progress_s": 0.05},
        limits={"token_s": 2.0, "answer_s": 60.0},
        controller={"respawns": 50},
    )
    async with Controller(run, on_warning=said.append) as controller:
        steps = []
        async for step in controller.train():
            steps.append(step.policy_version)
            if {"limits/closed", "workers/respawned"} <= controller.summary["counts"].keys():
                controller.stop("seen")
    assert steps == list(range(1, len(steps) + 1))
    counts = json.loads((tmp_path / "run" / "summary.json").read_text())["counts"]
    assert counts["limits/silent"] >= 1
    assert counts["limits/closed"] >= 1
    assert counts["workers/respawned"] >= 1
    assert any("got no token on rollout-" in text and "limits.token_s allows 2 s" in text for text in said)
    assert any("was closed: asked" in text for text in said)
    check_whole(tmp_path / "run", steps=len(steps))
    assert left_behind() == []
