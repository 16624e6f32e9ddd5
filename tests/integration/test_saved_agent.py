"""An environment in a real process that dies, and goes on in another from its last saved turn."""

import asyncio
import json
from dataclasses import replace

import numpy as np

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, Begin, EpisodeEnded, EpisodeFailed, SavedTrajectory
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving

COUNTER = """
import os
from pathlib import Path

LOG = Path(__file__).with_name("log")

class Counter:
    def reset(self, *, seed, options):
        self.count = 0
        self.note("reset")
        return "count"

    def note(self, *words):
        with LOG.open("a") as file:
            print(*words, file=file)

    def step(self, text):
        self.count += 1
        self.note("step", self.count)
        if self.count == 2 and not LOG.with_name("died").exists():
            LOG.with_name("died").touch()
            os._exit(9)
        return f"{self.count}", 1.0, self.count == 3, False, {}

    def save(self):
        return bytes([self.count])

    def load(self, state):
        self.count = state[0]
        self.note("load", self.count)
"""


def test_the_environment_is_loaded_and_not_reset_where_its_process_died(tmp_path):
    (tmp_path / "counter.py").write_text(COUNTER)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    settings = WorkerSettings(
        run_dir=str(tmp_path), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), agent=AgentSettings(function=f"{tmp_path}/counter.py:Counter"),
        rollout=RolloutSettings(max_prompt_tokens=400, max_response_tokens=100),
    )  # fmt: skip

    async def test(link):
        begin = Begin(1, 0, 1, seed=7, attempt=0, episodes=1)
        link.tell(begin, json.dumps({"n": 1}).encode())
        first, _ = await link.hear(Ask)
        link.answer(first, "yes", tokenizer)
        second, frames = await link.hear(Ask)
        assert second.saved == len(frames[1]) > 0
        link.answer(second, "yes", tokenizer)
        failed, _ = await link.hear(EpisodeFailed)
        assert failed.kind == "agent", "it was alone in its process; the core's state counts, not its word"
        known = (SavedTrajectory(1, second.keep, first.attempt + 1, True),)
        link.tell(replace(begin, known=2, restored=known), json.dumps({"n": 1}).encode(), frames[1])
        again, _ = await link.hear(Ask)
        assert replace(again, saved=0) == replace(second, saved=0)
        link.answer(again, "yes", tokenizer)
        third, (given, _) = await link.hear(Ask)
        text = tokenizer.decode(np.frombuffer(given, "<i4").tolist(), skip_special_tokens=False)
        assert "user\n2<|im_end|>" in text
        link.answer(third, "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.earned) == ((3.0,), "turns")
        assert ended.turn_rewards == ((0, 0, 1.0), (0, 1, 1.0), (0, 2, 1.0))

    asyncio.run(serving(settings, test))
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["reset", "step 1", "step 2", "load 1", "step 2", "step 3"]
