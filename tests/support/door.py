"""A door with episodes behind it, whose turns a test samples itself."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from protocol.agents.settings import AgentSettings
from protocol.messages import Begin, Segment, Turn
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.agent.door.door import Door
from workers.agent.door.refusal import refusal_of
from workers.agent.episode import EpisodeBudget, HostedEpisode
from workers.agent.policy import BudgetExceeded
from workers.agent.rendering.renderer import TemplateRenderer

LIMIT_S = 300


class Counter:
    """Stands where the agent worker stands, and counts what is sampled."""

    def __init__(self, settings, tokenizer, answers=()):
        """`answers`: given one after the other, at once; a turn beyond them waits for `answer`."""
        self.tokenizer, self.renderer = tokenizer, TemplateRenderer(tokenizer)
        self.settings, self.answers = settings, list(answers)
        self.asked, self.sampled = [], []
        self._episodes, self._open, self._news = {}, [], asyncio.Event()

    def begin(self, number):
        self._episodes[number] = HostedEpisode(
            Begin(number, 0, 1, seed=7, attempt=0, episodes=1), b"{}", renderer=self.renderer,
            limits=EpisodeBudget.of(self.settings, None),
        )  # fmt: skip
        self.key = self.door.desk.open(number)
        return self.key

    def ask(self, number, question):
        try:
            ask, (frame,) = self._episodes[number].ask(question, question.request.question)
        except (BudgetExceeded, ValueError) as error:
            raise refusal_of(error, question.request.param) from None
        question.begin(ask.keep + ask.given)
        self.asked.append((ask, np.frombuffer(frame, "<i4").tolist()))
        self._open.append((number, ask))
        self._news.set()
        if self.answers:
            asyncio.get_running_loop().call_soon(self.answer, self.answers.pop(0))

    async def has_asked(self, count):
        async with asyncio.timeout(LIMIT_S):
            while len(self.asked) < count:
                self._news.clear()
                await self._news.wait()

    def answer(self, text, ending="stop"):
        number, ask = self._open.pop(0)
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens += [self.tokenizer.eos_token_id] if ending == "stop" else []
        self.sampled.append(tokens)
        frames = np.asarray(tokens, "<i4").tobytes(), np.full(len(tokens), -0.5, "<f4").tobytes()
        segments = (Segment(ask.attempt + 1, 0, len(tokens)),)
        turn = Turn(number, 0, 1, ask.number, ask.member, ask.attempt + 1, ending, segments)
        question, answer = self._episodes[number].take(turn, frames[0])
        question.take(turn, answer["message"], frames, self.renderer.text)


@asynccontextmanager
async def opened(tokenizer, *answers, sampling=None, **agent):
    """A door, with episode 1 begun; its policy says these answers."""
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), agent=AgentSettings(function="a.py:f", door=True, **agent),
        rollout=RolloutSettings(
            max_prompt_tokens=2000, max_response_tokens=100, sampling=sampling or {}
        ),
    )  # fmt: skip
    counter = Counter(settings, tokenizer, answers)
    async with Door(settings, counter.ask) as counter.door:
        counter.begin(1)
        yield counter
