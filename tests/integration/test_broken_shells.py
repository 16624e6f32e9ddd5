"""The live shell over a core that is broken by a strategy that reaches into it: it ends with the name of the
invariant, and the same command goes back to before that event."""

import asyncio
from contextlib import ExitStack

import pytest
from test_failing_strategies import LIMIT_S, PROMPTS, config, serve, train

from controller import Controller
from controller.durability import snapshots
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.errors import RunError
from protocol.messages import Pull

BREAKS = """
import sys
from controller.durability import snapshots

def choose(instances, settings):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "state"):
        frame = frame.f_back
    state = frame.f_locals["self"].state
    if state.epoch in {epochs}:
        state.accounts.generated += 1
        while frame is not None and frame.f_code.co_name != "_turn":
            frame = frame.f_back
        if frame is not None:  # it is live, and the minute until the next check is over
            snapshots.CHECK_S = 0.0
    return [i.id for i in instances]
"""


@pytest.fixture(autouse=True)
def no_minutes(monkeypatch):
    """The check comes when the strategy says so, and these workers acknowledge nothing at the end."""
    monkeypatch.setattr(snapshots, "CHECK_S", 1e9)
    monkeypatch.setattr("controller.host.shell.FLUSH_S", 0.1)


async def test_a_shell_goes_back_to_before_the_event_that_broke_its_core(tmp_path):
    (tmp_path / "mine.py").write_text(BREAKS.format(epochs={1}))
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(RunError, match=r"breaks an invariant after event \d+: the token ledger"):
            await train(config(tmp_path))
    snapshots.CHECK_S = 1e9
    said: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        again = Controller(config(tmp_path), prompts=PROMPTS, on_warning=said.append)
        with ExitStack() as stack:
            async with again as controller:
                worker = await serve(controller, stack)
                await worker.hears(Pull)
    with Recording(tmp_path / "run") as recording:
        ((number, reason),) = [(number, why) for number, why in recording.skipped.items() if why]
        assert replay(recording).is_equal
    assert " of some-" in reason
    assert "the core broke an invariant: the token ledger does not close" in reason
    assert [text for text in said if text.startswith(f"The run goes back to before event {number}, ")]
    assert f"Event {number} of the run is passed over. {reason}" in said


async def test_a_shell_whose_core_breaks_again_ends_with_the_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(BREAKS.format(epochs={1, 2}))
    async with asyncio.timeout(2 * LIMIT_S):
        for _ in range(2):
            snapshots.CHECK_S = 1e9
            with pytest.raises(RunError, match="breaks an invariant after event"):
                await train(config(tmp_path))
        with pytest.raises(RunError, match="went back for it once, and it is broken again") as raised:
            await train(config(tmp_path))
    assert "Traceback (most recent call last)" in str(raised.value)
