"""Orders to a real run over its own socket: pause, checkpoint, set, unpause; and that a replay obeys them."""

import asyncio
import json
from pathlib import Path

import pytest
from test_whole_runs import config, left_behind

from controller import Controller
from controller.cli.remote import ask, order_of
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.sample_text import SampleReader
from protocol.errors import ConfigError


async def order(run: Path, action: str, argument: str = "", why: str = "") -> str:
    return await ask(str(run), order_of(action, argument, why=why, who="anna@here"))


async def until(is_so) -> None:
    async with asyncio.timeout(300):
        while not is_so():  # noqa: ASYNC110  # what other processes do has no event here
            await asyncio.sleep(0.01)


async def test_a_paused_run_waits_saves_and_goes_on(tmp_path):
    settings = config(tmp_path, run={"steps": 8}, rollout={"instances": 1}, trainer={"checkpoint_steps": 0})
    said: list[str] = []
    async with Controller(settings, on_warning=said.append) as controller:
        run, made = controller.run_dir, 0
        async for _ in controller.train():
            made += 1
            if made != 3:
                continue
            assert (await order(run, "pause", why="lunch")).startswith("The run is paused")
            await until(lambda: "paused the run" in controller.snapshot().idle_because)
            stood = controller.snapshot()
            assert "An operator has paused the run: anna@here" in stood.idle_because
            assert json.loads((run / "status.json").read_text()) is not None
            assert "saved" in await order(run, "checkpoint")
            await until(lambda: list((run / "checkpoints").glob("step_*/.complete")))
            assert controller.snapshot().steps == stood.steps
            with pytest.raises(ConfigError, match="no live key"):
                await order(run, "set", "trainer.lr=1")
            assert "it was 4" in await order(run, "set", "samples.groups=1")
            assert (await order(run, "unpause")).startswith("The run goes on")
    assert made == 8
    assert any("Asked by anna@here: lunch. The run is paused" in text for text in said)
    with Recording(run) as recording:
        assert replay(recording).is_equal
        reader = SampleReader(recording)
        kept = reader.kept()
        assert {step for step, _ in kept} == set(range(1, 9))
        assert sum(step == 8 for step, _ in kept) == 1
        assert all(reader.read(*key).responses[0].tokens for key in kept)
    assert not left_behind()
