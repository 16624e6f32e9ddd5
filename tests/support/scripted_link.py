"""An agent worker before a controller that a test scripts."""

import asyncio
import json
from collections import deque

import numpy as np

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, Begin, Ready, Segment, Turn
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.agent.worker import AgentHost

LIMIT_S = 300


class ScriptedLink:
    """A link whose other end is the test."""

    def __init__(self):
        self.arrived = asyncio.Event()
        self._inbox, self._said, self._news = deque(), deque(), asyncio.Event()

    def receive_nowait(self):
        if self._inbox:
            return self._inbox.popleft()
        self.arrived.clear()
        return None

    def wake(self):
        self.arrived.set()

    def send(self, message, *frames):
        self._said.append((message, frames))
        self._news.set()

    def tell(self, message, *frames):
        self._inbox.append((message, frames))
        self.arrived.set()

    async def hear(self, kind):
        """The oldest word of this kind that the worker has said."""
        async with asyncio.timeout(LIMIT_S):
            while (found := next((said for said in self._said if isinstance(said[0], kind)), None)) is None:
                self._news.clear()
                await self._news.wait()
        self._said.remove(found)
        return found

    def begin(self, group, trial=1, **row):
        text = json.dumps({"group": group, **row}).encode()
        self.tell(Begin(group, 0, trial, seed=7, attempt=0, episodes=1), text)

    def answer(self, ask, text, tokenizer):
        tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        frames = np.asarray(tokens, "<i4").tobytes(), np.zeros(len(tokens), "<f4").tobytes()
        segments = (Segment(ask.attempt + 1, 0, len(tokens)),)
        self.tell(
            Turn(ask.group, 0, ask.trial, ask.number, ask.member, ask.attempt + 1, "stop", segments), *frames
        )

    async def play(self, group, tokenizer, **row):
        """Begin an episode, answer its first request, and hear of its end."""
        self.begin(group, **row)
        ask, _ = await self.hear(Ask)
        self.answer(ask, "yes", tokenizer)


def settings_maker(folder, code, tokenizer, **options):
    """A function that makes settings of a worker for the agent `episode` in this code; `agent`: its keys."""
    (folder / "agents.py").write_text(code)
    tokenizer.save_pretrained(folder)
    options = {"function": f"{folder}/agents.py:episode"} | options

    def make(**agent):
        return WorkerSettings(
            run_dir=str(folder), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(), agent=AgentSettings(**options | agent),
            rollout=RolloutSettings(max_prompt_tokens=400, max_response_tokens=100),
        )  # fmt: skip

    return make


async def serving(settings, test, link=None):
    """Run the test against a worker of these settings."""
    link, worker = link or ScriptedLink(), AgentHost(settings, settings.run_dir)
    running = asyncio.create_task(worker.run(link))
    hearing = asyncio.create_task(link.hear(Ready))
    await asyncio.wait({running, hearing}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not running.done():
            await test(link)
    finally:
        worker.drain()
        hearing.cancel()
        async with asyncio.timeout(LIMIT_S):
            await running
