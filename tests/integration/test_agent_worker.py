"""The agent worker with real processes of users' code, before a controller that a test scripts."""

import asyncio

import numpy as np
import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from protocol.messages import Ask, EndEpisodes, EpisodeEnded, EpisodeFailed
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving, settings_maker
from workers.agent import child as child_module

AGENTS = """
import asyncio, os, re, sys, time
from workers.agent.policy import EnvironmentFailed

async def episode(policy, row):
    mood = row.get("mood", "play")
    if mood == "early":
        return 1.0
    if mood == "long":
        await policy.generate([1] * 1000)
    print("a print must not corrupt the pipe")
    os.write(1, b"neither must a raw write")
    talk = [{"role": "user", "content": f"{row['group']} {policy.seed}"}]
    answer = await policy.chat(talk)
    policy.reward(0.25)
    policy.metric("seen", 3)
    policy.log("it is over")
    match mood:
        case "raise": raise LookupError("no\\nsuch\\n\\n  thing")
        case "exit": sys.exit("enough")
        case "interrupt": raise KeyboardInterrupt
        case "cancel": raise asyncio.CancelledError("mine")
        case "down": raise EnvironmentFailed("the shop is closed")
        case "reset": raise ConnectionResetError("by peer")
        case "nan": return float("nan")
        case "text": return "1"
        case "map": return {"reward": 1}
        case "by turn":
            await policy.chat([*talk, answer, talk[0]])
            policy.reward(0.5)
            return None
        case "nothing": policy.notes.rewards.clear(); return None
        case "die": os._exit(9)
        case "block": time.sleep(600)
        case "backtrack": re.match("(a+)+$", "a" * 64 + "b")
        case "hang": await asyncio.sleep(600)
        case "stubborn":
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass
        case "many":
            asked = [policy.chat([*talk, answer, talk[0]]) for _ in range(1000)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            return float(sum(isinstance(one, ValueError) for one in found))
        case "compacts":
            talk += [answer, {"role": "user", "content": "b" * 600}]
            try:
                await policy.chat(talk)
            except Exception as error:
                assert error.limit == "context", error
            return float((await policy.chat(talk[:1]))["content"] == "yes")
        case "greedy":
            while True:
                talk += [answer, talk[0]]
                answer = await policy.chat(talk)
    await policy.chat([*talk, {**answer, "refusal": None}, {"role": "user", "content": "more"}])
    policy.reward(0.5)
    return {"score": 0.75}

def no_agent(policy):
    return 1.0
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer):
    return settings_maker(tmp_path, AGENTS, tokenizer, turn_timeout_s=600.0, max_turns=3)


def test_an_episode_is_played_turn_by_turn(settings, tokenizer):
    async def test(link):
        await link.play(5, tokenizer)
        second, (frame,) = await link.hear(Ask)
        given = tokenizer.decode(np.frombuffer(frame, "<i4").tolist(), skip_special_tokens=False)
        assert given == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
        link.answer(second, "no", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert ended == EpisodeEnded(
            5, 0, 1, "stop", (0.75,), turn_rewards=((0, 0, 0.25), (0, 1, 0.5)), metrics=(("seen", 3.0),),
            awaited=ended.awaited, log="it is over\n", earned="end",
        )  # fmt: skip
        assert [turn[:2] for turn in ended.awaited] == [(0, 0), (0, 1)]
        assert all(waited_ms > 0 for *_, waited_ms in ended.awaited)

    asyncio.run(serving(settings(), test))


@pytest.mark.parametrize("isolation", ["shared", "process"])
def test_a_function_that_returns_nothing_says_that_its_turns_have_earned_its_reward(
    settings, tokenizer, isolation
):
    async def test(link):
        await link.play(1, tokenizer, mood="by turn")
        link.answer((await link.hear(Ask))[0], "no", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.earned) == ((0.75,), "turns")
        assert ended.turn_rewards == ((0, 0, 0.25), (0, 1, 0.5))

    asyncio.run(serving(settings(isolation=isolation), test))


def test_an_episode_that_is_begun_again_asks_the_same(settings, tokenizer):
    async def test(link):
        digests = []
        for _ in range(2):  # the second Begin is what a controller says that has lost this worker's link
            link.begin(5)
            asks = [(await link.hear(Ask))[0]]
            link.answer(asks[0], "yes", tokenizer)
            asks.append((await link.hear(Ask))[0])
            digests.append([(ask.number, ask.attempt, ask.keep, ask.digest) for ask in asks])
        assert digests[0] == digests[1]

    asyncio.run(serving(settings(), test))


@pytest.mark.parametrize(
    ("mood", "kind", "words"),
    [
        ("raise", "agent", "raised LookupError: no such thing\nTraceback"),
        ("exit", "agent", "raised SystemExit: enough"),
        ("interrupt", "agent", "raised KeyboardInterrupt"),
        ("cancel", "agent", "raised asyncio.exceptions.CancelledError: mine"),
        ("down", "environment", "the shop is closed"),
        ("reset", "environment", "lost a connection: ConnectionResetError: by peer"),
        ("nan", "agent", "returned nan of type float"),
        ("text", "agent", "returned '1' of type str"),
        ("map", "agent", "without `score`"),
        ("nothing", "agent", "returned None, and there is no `reward.function`"),
    ],
)
def test_whatever_the_code_does_is_its_own_failure_in_words(settings, tokenizer, mood, kind, words, served):
    failed = served[mood]
    assert (failed.kind, words in failed.reason) == (kind, True), failed.reason
    assert mood in failed.row


@pytest.fixture(scope="module")
def served(tmp_path_factory, tokenizer):
    """What a worker says of each mood, one after the other."""
    directory, told = tmp_path_factory.mktemp("moods"), {}
    (directory / "agents.py").write_text(AGENTS)
    tokenizer.save_pretrained(directory)
    agent = AgentSettings(function=f"{directory}/agents.py:episode")
    made = WorkerSettings(
        run_dir=str(directory), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(), rollout=RolloutSettings(max_prompt_tokens=400), agent=agent,
    )  # fmt: skip

    async def test(link):
        moods = ("raise", "exit", "interrupt", "cancel", "down", "reset", "nan", "text", "map", "nothing")
        for group, mood in enumerate(moods):
            await link.play(group, tokenizer, mood=mood)
            told[mood], _ = await link.hear(EpisodeFailed)

    asyncio.run(serving(made, test))
    return told


@pytest.mark.parametrize(
    ("mood", "kind", "words"),
    [
        ("early", "agent", "before the policy had answered once"),
        ("long", "limit", "its limit `context` before the policy had said anything. The conversation has "),
    ],
)
def test_an_episode_without_a_turn_is_a_failure(settings, mood, kind, words):
    async def test(link):
        link.begin(1, mood=mood)
        failed, _ = await link.hear(EpisodeFailed)
        assert failed.kind == kind
        assert words in failed.reason

    asyncio.run(serving(settings(), test))


def test_a_limit_ends_an_episode_that_does_not_catch_it_and_what_was_earned_stands(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, mood="greedy")
        for _ in range(2):
            link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.ending, ended.reward, ended.earned) == ("turns", (0.25,), "turns")

    asyncio.run(serving(settings(), test))


def test_an_episode_that_makes_room_at_a_limit_and_goes_on_was_not_ended_by_it(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, mood="compacts")
        link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.ending, ended.reward) == ("stop", (1.0,))

    asyncio.run(serving(settings(), test))


@pytest.mark.parametrize("trajectories", [1, 4])
def test_a_thousand_requests_at_once_are_as_many_as_it_may_have_and_refusals(
    settings, tokenizer, trajectories
):
    async def test(link):
        await link.play(1, tokenizer, mood="many")
        asked = [(await link.hear(Ask))[0] for _ in range(trajectories)]
        assert sorted(ask.member for ask in asked) == list(range(trajectories))
        for ask in asked:
            link.answer(ask, "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert ended.reward == (1000.0 - trajectories,)

    asyncio.run(serving(settings(max_turns=100, max_trajectories=trajectories), test))


def test_an_episode_that_kills_its_process_is_found_and_takes_no_other_with_it_twice(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer)
        await link.hear(Ask)
        await link.play(2, tokenizer, mood="die")
        lost = [(await link.hear(EpisodeFailed))[0] for _ in range(2)]
        assert {(failed.group, failed.kind) for failed in lost} == {(1, "process"), (2, "process")}
        assert "exit code 9" in lost[0].reason
        await link.play(1, tokenizer)
        link.answer((await link.hear(Ask))[0], "no", tokenizer)
        await link.play(2, tokenizer, mood="die")
        failed, _ = await link.hear(EpisodeFailed)
        assert (failed.group, failed.kind) == (2, "agent")
        assert (await link.hear(EpisodeEnded))[0].group == 1

    asyncio.run(serving(settings(), test))


def test_an_episode_that_blocks_the_event_loop_is_named_and_the_others_go_on_elsewhere(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer)
        await link.hear(Ask)
        await link.play(2, tokenizer, mood="block")
        lost = [(await link.hear(EpisodeFailed))[0] for _ in range(2)]
        assert {(failed.group, failed.kind) for failed in lost} == {(1, "process"), (2, "agent")}
        assert "blocked the event loop" in lost[0].reason

    asyncio.run(serving(settings(turn_timeout_s=4.0), test))


def test_an_episode_that_holds_the_interpreter_is_found_though_nothing_in_its_process_runs(
    settings, tokenizer
):
    async def test(link):
        await link.play(1, tokenizer)
        await link.hear(Ask)
        await link.play(2, tokenizer, mood="backtrack")
        lost = [(await link.hear(EpisodeFailed))[0] for _ in range(2)]
        assert {(failed.group, failed.kind) for failed in lost} == {(1, "process"), (2, "process")}
        assert "no sign of life" in lost[0].reason
        await link.play(2, tokenizer, mood="backtrack")  # alone
        failed, _ = await link.hear(EpisodeFailed)
        assert (failed.group, failed.kind) == (2, "agent")

    asyncio.run(serving(settings(turn_timeout_s=2.0), test))


def test_episodes_that_the_controller_ends_are_not_heard_of_again(settings, tokenizer, monkeypatch):
    async def test(link):
        await link.play(1, tokenizer, mood="hang")
        await link.play(2, tokenizer, mood="stubborn")
        link.tell(EndEpisodes(((1, 0, 1),), "late"))
        await link.play(3, tokenizer)
        waiting, _ = await link.hear(Ask)
        link.answer(waiting, "no", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].group == 3
        await link.play(4, tokenizer)
        await link.hear(Ask)
        monkeypatch.setattr(child_module, "GRACE_S", 0.3)  # what obeys had all the time that it took
        link.tell(EndEpisodes(((2, 0, 1),), "late"))  # it does not obey, and its process is killed
        failed, _ = await link.hear(EpisodeFailed)
        assert (failed.group, failed.kind) == (4, "process")
        assert "did not obey" in failed.reason

    asyncio.run(serving(settings(), test))


@pytest.mark.parametrize("name", ["no_agent", "missing"])
def test_an_agent_that_is_none_ends_the_worker_at_its_start(settings, name):
    made = settings()
    agent = made.agent.model_copy(update={"function": made.agent.function.replace(":episode", f":{name}")})

    async def test(link):
        raise AssertionError("it must not be ready")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(serving(made.model_copy(update={"agent": agent}), test))
    found = raised.value
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ConfigError)
    assert "`agent.function` cannot be used" in str(found)
