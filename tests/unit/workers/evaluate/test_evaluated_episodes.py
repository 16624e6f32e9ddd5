"""Episodes that a checkpoint plays without a run: what counts is what counts in a run's evaluation."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, Begin, EndEpisodes, EpisodeEnded, EpisodeFailed, Ready, Turn
from workers.evaluate import checkpoint as module
from workers.evaluate.checkpoint import CheckpointEpisodes, CheckpointResponses
from workers.evaluate.engine import LocalAnswer
from workers.evaluate.played import Lost


class Tokenizer:
    """Numbers as text."""

    def decode(self, tokens, *, skip_special_tokens):
        return " ".join(map(str, tokens))


class Engine:
    """Samples the token 9; answers in the order in which it is told to, and keeps the seeds."""

    def __init__(self):
        self.seeds, self.open = {}, asyncio.Event()
        self.open.set()

    async def generate(self, tokens, most, *, seed):
        self.seeds[tuple(tokens)] = seed
        await self.open.wait()
        return LocalAnswer([9], [-0.5], "stop")


class Host:
    """An agent worker whose episodes do what `script` says to each message."""

    script = None

    def __init__(self, settings, directory):
        self.is_draining = False

    def drain(self):
        self.is_draining = True
        self.link.wake()

    async def run(self, link):
        self.link = link
        link.send(Ready(0, 9, 0))
        while not self.is_draining:
            while (item := link.receive_nowait()) is not None:
                for word in type(self).script(item[0], json.loads(item[1][0]) if len(item[1]) == 1 else None):
                    link.send(*word)
            await link.arrived.wait()


def ask(key, given, *, member=0, number=0, keep=0, **more):
    frame = b"".join(token.to_bytes(4, "little") for token in given)
    return Ask(*key, number, member, 1 + 2 * number, keep, len(given), "d", 9, **more), frame


def ended(key, ending="stop", reward=0.5):
    return (EpisodeEnded(*key, ending=ending, reward=(reward,)),)


def key_of(message):
    return message.group, message.episode, message.trial


@pytest.fixture
def play(monkeypatch):
    """Plays rows with a script, all at once in this order; what each came to, and the engine."""
    monkeypatch.setattr(module, "AgentHost", Host)
    monkeypatch.setattr(module, "load_tokenizer", lambda directory: Tokenizer())

    async def play(script, *numbers, engine=None, **agent):
        Host.script, engine = staticmethod(script), engine or Engine()
        settings = SimpleNamespace(
            seed=7, agent=AgentSettings(**{"function": "m:f", "retries": 0, **agent}), rollout=None
        )
        async with asyncio.timeout(300), CheckpointEpisodes(settings, "", engine, samples=1) as episodes:
            plays = [episodes.play(number, 0, {"given": [number + 1]}) for number in numbers]
            found = await asyncio.gather(*plays, return_exceptions=True)
        return found, engine

    return play


def one_turn(ending):
    def script(message, row):
        if isinstance(message, Begin):
            return [ask(key_of(message), row["given"])]
        return [ended(key_of(message), ending)] if isinstance(message, Turn) else []

    return script


@pytest.mark.parametrize(
    ("on_limit", "ending", "reward"),
    [("score", "turns", 0.5), ("zero", "turns", 0.0), ("mask", "turns", 0.0), ("mask", "stop", 0.5)],
)
async def test_a_limit_counts_as_in_the_evaluation_of_a_run(play, on_limit, ending, reward):
    (played,), _ = await play(one_turn(ending), 0, on_limit=on_limit)
    assert (played.reward, played.ending) == (reward, "stop" if ending == "stop" else "length")


class FullEngine(Engine):
    async def generate(self, tokens, most, *, seed):
        raise ValueError("Generation (1, 0, 1) needs 9 tokens; the engine's context is 8.")


async def test_what_the_engine_cannot_take_is_a_row_that_has_failed(play, monkeypatch):
    found, _ = await play(one_turn("stop"), 0, 1, engine=FullEngine())
    assert [(type(one), "context is 8" in str(one)) for one in found] == [(Lost, True)] * 2
    monkeypatch.setattr(module, "encode_prompt", lambda *given, **limits: [1, 2])
    settings = SimpleNamespace(seed=7, rollout=SimpleNamespace(max_prompt_tokens=4, max_response_tokens=7))
    with pytest.raises(Lost, match="context is 8"):
        await CheckpointResponses(settings, "", FullEngine()).play(0, 0, {"prompt": "?"})


async def test_what_a_turn_took_its_worker_beside_the_engine_is_told(play):
    def script(message, row):
        if isinstance(message, Begin):
            return [ask(key_of(message), row["given"])]
        if not isinstance(message, Turn):
            return []
        awaited = ((0, 0, 60_000.0), (0, 7, 1.0))
        return [(EpisodeEnded(*key_of(message), "stop", (0.5,), awaited=awaited),)]

    (played,), _ = await play(script, 0)
    (overhead_ms,) = played.overhead_ms
    assert 0 < overhead_ms < 60_000, "the engine's part is taken off"


async def test_what_is_sampled_hangs_on_the_row_and_the_sample_and_not_on_who_comes_first(play):
    _, engine = await play(one_turn("stop"), 0, 1, 2)
    _, again = await play(one_turn("stop"), 2, 1, 0)
    assert engine.seeds == again.seeds
    assert len(set(engine.seeds.values())) == 3


async def test_another_try_of_an_episode_is_sampled_anew(play):
    trials = []

    def script(message, row):
        if isinstance(message, Begin):
            return [ask(key_of(message), [message.trial])]
        if isinstance(message, Turn):
            trials.append(message.trial)
            over = EpisodeFailed(*key_of(message), "environment", "it is gone", "{}")
            return [(over,) if message.trial == 1 else ended(key_of(message))]
        return []

    (played,), engine = await play(script, 0, retries=1)
    assert (played.reward, trials) == (0.5, [1, 2])
    assert len(set(engine.seeds.values())) == 2


async def test_the_prompt_is_that_of_the_first_trajectory_however_many_are_asked_at_once(play):
    answered, engine = [], Engine()
    engine.open.clear()

    def script(message, row):
        if isinstance(message, Begin):
            asyncio.get_running_loop().call_later(0.02, engine.open.set)
            return [ask(key_of(message), [1, 2]), ask(key_of(message), [3, 4, 5, 6], member=1)]
        if isinstance(message, Turn):
            answered.append(message.member)
            return [ended(key_of(message))] if len(answered) == 2 else []
        return []

    (played,), _ = await play(script, 0, engine=engine)
    assert (played.prompt_ids, played.completion_ids) == ([1, 2], [9])
    assert (played.turns, played.tokens) == (2, 2)


def silent(message, row):
    """Asks once, and never says anything again."""
    return [ask(key_of(message), row["given"])] if isinstance(message, Begin) else []


async def test_silence_after_a_turn_is_worth_nothing_where_a_run_scores_it(play):
    (played,), _ = await play(silent, 0, turn_timeout_s=0.01, on_timeout="score")
    assert (played.reward, played.ending, played.turns) == (0.0, "length", 1)


@pytest.mark.parametrize(
    ("limits", "script", "key"),
    [
        ({"turn_timeout_s": 0.01}, silent, "turn"),
        ({"turn_timeout_s": 99.0, "episode_timeout_s": 0.01}, silent, "episode"),
        ({"start_timeout_s": 0.01}, lambda message, row: [], "start"),
        ({"start_timeout_s": 0.01, "episode_timeout_s": 0.005}, lambda message, row: [], "start"),
    ],
)
async def test_silence_names_the_limit_that_it_has_passed(play, limits, script, key):
    (lost,), _ = await play(script, 0, on_timeout="retry", **limits)
    assert isinstance(lost, Lost)
    assert str(lost).startswith("Its environment was silent for ")
    assert str(lost).endswith(f"(agent.{key}_timeout_s).")


async def test_time_of_the_policy_is_not_that_of_the_environment(play):
    engine = Engine()
    engine.open.clear()

    def script(message, row):
        if isinstance(message, Begin):
            asyncio.get_running_loop().call_later(0.05, engine.open.set)
        return one_turn("stop")(message, row)

    (played,), _ = await play(script, 0, engine=engine, turn_timeout_s=0.01, start_timeout_s=9.0)
    assert played.reward == 0.5


async def test_an_episode_that_is_over_is_called_off_whatever_it_came_to(play):
    over = []

    def script(message, row):
        over.extend(message.episodes if isinstance(message, EndEpisodes) else ())
        return one_turn("stop")(message, row)

    await play(script, 0, 1)
    assert sorted(over) == [(0, 0, 1), (1, 0, 1)]


async def test_conversations_that_training_would_take_are_counted_and_told_by_their_cause(play):
    def script(message, row):
        if isinstance(message, Begin):
            key = key_of(message)
            aside = ask(key, [9], member=2, cause="branched", is_trained=False)
            return [ask(key, [1]), ask(key, [2], member=1, cause="edited"), aside]
        is_last = isinstance(message, Turn) and message.member == 2
        return [ended(key_of(message))] if is_last else []

    (played,), _ = await play(script, 0)
    assert played.forks == ("edited",)
    assert (played.turns, played.tokens) == (2, 2), "without the one that is not trained"
