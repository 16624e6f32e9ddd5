"""Episodes at an endpoint that takes long to answer: only their environment has limits of time."""

import asyncio
from types import SimpleNamespace

import pytest

from protocol.agents.settings import AgentSettings
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings

pytest.importorskip("httpx2", reason="the package httpx2 is not installed (pip install -e '.[judge]')")

from workers.agent.child import Ended
from workers.evaluate.endpoint import REQUEST_S, EndpointAnswer, EndpointEpisodes
from workers.evaluate.played import Lost

ASK = {"chat": [{"role": "user", "content": "?"}]}
NO_END = r"came to no end in 618 s \(without answers\)\. Raise agent\.episode_timeout_s"
LIMITS = {"start_timeout_s": 9.0, "episode_timeout_s": 9.0}


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    skipped_s = 0.0

    def time(self):
        return super().time() + self.skipped_s


class Process:
    """A process whose agent asks `turns` times, one after the other; its environment takes `own_s` each."""

    asks_at_door = False

    def __init__(self, turns, own_s):
        self.turns, self.own_s = turns, own_s

    async def place(self, *, is_alone):
        return self

    def begin(self, number, seed, row, door):
        self.answer(number, 0, None)

    def answer(self, number, question, answer):
        asyncio.get_running_loop().skipped_s += self.own_s
        if question < self.turns:
            self.ask(number, question + 1)
        else:
            self.episodes.on_ended(number, Ended(1.0, (), (), ""))

    def ask(self, number, question):
        asyncio.get_running_loop().call_soon(self.episodes.on_ask, self, number, question, ASK)

    async def wait_for_answer(self):
        await asyncio.sleep(0)

    def cancel(self, number):
        """It is over already."""

    def answered(self, child):
        """It works."""


class AtTheDoor(Process):
    """A process whose agent asks the endpoint itself, and is answered too late."""

    asks_at_door = True

    def begin(self, number, seed, row, door):
        loop = asyncio.get_running_loop()
        loop.call_soon(setattr, loop, "skipped_s", REQUEST_S * 2)

    def count(self, number, turns):
        """It has no turns here."""


class Crowd(Process):
    """A process whose agent asks eight times at once at first."""

    left = 8

    def begin(self, number, seed, row, door):
        for _ in range(self.left):
            self.ask(number, 0)

    def answer(self, number, question, answer):
        self.left -= 1
        if self.left <= 0:
            super().answer(number, question, answer)


class Relay(Process):
    """A process whose agent always has a request open: each is answered once the next has come."""

    asked = 0
    next_came: asyncio.Event | None = None

    def begin(self, number, seed, row, door):
        for question in (1, 2):
            self.ask(number, question)

    async def wait_for_answer(self):
        self.asked += 1
        if self.next_came is not None:
            self.next_came.set()
        self.next_came = mine = asyncio.Event()
        if self.asked <= self.turns:
            await mine.wait()


def play(process, *, answer_s):
    """An episode of this process, at an endpoint that takes so long for each answer."""

    async def chat(messages, tools, most, *, template_kwargs):
        loop = asyncio.get_running_loop()
        ends = loop.time() + answer_s
        await process.wait_for_answer()
        loop.skipped_s += max(0.0, ends - loop.time())
        return EndpointAnswer({"role": "assistant", "content": "two"}, "stop", 1)

    async def run():
        settings = WorkerSettings(
            run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(), rollout=RolloutSettings(),
            agent=AgentSettings(function="a.py:f", retries=0, **LIMITS),
        )  # fmt: skip
        endpoint = SimpleNamespace(base_url="http://there/v1", key="", chat=chat)
        process.episodes = EndpointEpisodes(settings, endpoint)
        process.episodes._pool = process
        return await process.episodes.play(0, 0, {})

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(run())


def test_the_time_of_many_slow_answers_does_not_count():
    played = play(Process(turns=9, own_s=0.5), answer_s=REQUEST_S / 2)
    assert (played.reward, played.turns) == (1.0, 9)


def test_the_time_of_the_environment_counts():
    with pytest.raises(Lost, match=NO_END):
        play(Process(turns=9, own_s=REQUEST_S / 4), answer_s=0.5)


def test_the_time_of_requests_that_are_open_together_is_left_out_once():
    with pytest.raises(Lost, match=NO_END):
        play(Crowd(turns=1, own_s=REQUEST_S * 2), answer_s=REQUEST_S / 2)


def test_the_time_of_answers_does_not_count_while_others_are_awaited():
    assert play(Relay(turns=9, own_s=0.0), answer_s=REQUEST_S / 2).reward == 1.0


def test_an_agent_at_the_door_is_told_that_answers_count():
    with pytest.raises(
        Lost, match=r"in 618 s \(at the door the endpoint's answers count, too\)\. Raise agent"
    ):
        play(AtTheDoor(turns=1, own_s=0.0), answer_s=0.0)
