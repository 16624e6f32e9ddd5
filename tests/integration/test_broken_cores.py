"""A real run whose core is broken by a strategy that reaches into it: it ends with the name of the invariant,
and the same command goes back to before that event and makes the rest."""

import json

import pytest
from test_whole_runs import config

from controller import Controller
from controller.durability import snapshots
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host import snapshot_taker
from protocol.errors import RunError

STEPS = 12
BREAKS = """
import sys

def keep(rewards):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("message"), "attempt") or "self" not in frame.f_locals:
        frame = frame.f_back
    message, state = frame.f_locals["message"], frame.f_locals["self"].state
    if message.group == {group} and message.attempt <= {attempts}:
        state.accounts.generated += 1
    return True
"""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """A check in every turn that finds half of the time left for it, and none beside the run, which could
    be over first."""
    monkeypatch.setattr(snapshots, "CHECK_S", 0.0)
    monkeypatch.setattr(snapshots, "SHARE", 1.0)
    monkeypatch.setattr(snapshot_taker, "CAN_BEGIN", False)


def settings(folder, *, attempts):
    (folder / "mine.py").write_text(BREAKS.format(group=6, attempts=attempts))
    return config(
        folder,
        run={"steps": STEPS},
        staleness={"filter": f"{folder / 'mine.py'}:keep"},
        trainer={"checkpoint_steps": 1},
    )


async def made_by(config):
    async with Controller(config) as controller:
        return [step.policy_version async for step in controller.train()]


async def test_a_run_goes_back_to_before_the_event_that_broke_its_core_and_makes_the_rest(tmp_path):
    mine = settings(tmp_path, attempts=1)
    with pytest.raises(RunError, match=r"breaks an invariant after event \d+: the token ledger"):
        await made_by(mine)
    made = await made_by(mine)
    assert made[-1] == STEPS
    run = tmp_path / "run"
    lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, STEPS + 1))
    with Recording(run) as recording:
        ((number, reason),) = [(n, why) for n, why in recording.skipped.items() if why]
        assert reason.startswith(
            "After GroupScored of reward-0 the core broke an invariant: the token ledger"
        )
        verdict = replay(recording)
    assert verdict.is_equal
    assert (verdict.steps, verdict.epochs, verdict.finished) == (STEPS, 2, True)
    log = (run / "logs" / "controller.log").read_text()
    assert f"The run goes back to before event {number}" in log


@pytest.mark.costly
async def test_the_same_invariant_broken_again_ends_the_run_with_the_traceback(tmp_path):
    mine = settings(tmp_path, attempts=99)
    for _ in range(2):
        with pytest.raises(RunError, match="The core breaks an invariant after event"):
            await made_by(mine)
    with pytest.raises(RunError, match="went back for it once, and it is broken again") as raised:
        await made_by(mine)
    assert "Traceback (most recent call last)" in str(raised.value)
