"""The reward worker as a real process, and what any worker does when nobody is there."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from worker_stand import LETTERS, LIMIT_S, ROOT, Stand, exit_of, gone, int32

from protocol.messages import (
    Close,
    Detach,
    Encode,
    ExamplesEncoded,
    GroupScored,
    PromptsEncoded,
    Ready,
    Score,
    ScoreFailed,
    ScoreItem,
    Segment,
    WorkerFailed,
)

REWARDS = """
import asyncio, os, subprocess, sys, time

CALLS = []

def good(completion, answer, **row):
    print("a print must not corrupt the pipe")
    os.write(1, b"neither must a raw write")
    sys.stdin.read()
    return completion == answer

async def patient(completions, answer, **columns):
    await asyncio.sleep(0)
    CALLS.append(1)
    return [len(CALLS)] * len(completions)

def moody(completion, answer, group):
    if answer == "raise":
        raise LookupError("no such thing")
    if answer == "nan":
        return float("nan")
    if answer == "hang":
        subprocess.Popen(["sleep", "600"])
        time.sleep(600)
    if answer == "sleep":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("asleep")
        time.sleep(600)
    if answer == "die":
        os._exit(9)
    if answer == "exit":
        sys.exit("enough")
    return group

def unknown(x):
    return x
"""


@pytest.fixture
def task(stand: Stand) -> Callable[..., Awaitable[Process]]:
    """Starts a reward worker with a function of REWARDS and a tokenizer of single letters."""
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(LETTERS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(stand.directory / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}="
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "a", "chat_template": template}
    (stand.directory / "tokenizer_config.json").write_text(json.dumps(config))
    (stand.directory / "rewards.py").write_text(REWARDS)

    async def start(function: str, *, is_supervised: bool = False, **reward: Any) -> Process:
        reward["function"] = f"{stand.directory}/rewards.py:{function}"
        trainer = {"algorithm": "sft"} if is_supervised else {}
        return await stand.start("reward", reward=reward, rollout={"max_prompt_tokens": 6}, trainer=trainer)

    return start


def ids(text: str) -> bytes:
    return int32(*(LETTERS.index(c) for c in text))


def ask(stand: Stand, group: int, answer: str, *responses: str, attempt: int = 0) -> None:
    """Ask for the score of a group."""
    items = tuple(ScoreItem(n, "stop", (Segment(0, 0, len(r)),)) for n, r in enumerate(responses))
    row = json.dumps({"prompt": "2+2=", "answer": answer, "long": "x" * 1000}).encode()
    stand.send(Score(group, attempt, items), row, ids("2+2="), *map(ids, responses))


async def test_a_reward_worker_encodes_prompts_and_refuses_others_with_reasons(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    await task("good")
    await stand.expect(Ready)
    rows: list[Any] = [
        {"prompt": "2+2="},
        {"prompt": [{"role": "user", "content": "1+1"}]},
        {"prompt_ids": [5, 6]},
        {"prompt": "1+1+1+1="},
        {"prompt": ""},
        {"question": "2+2="},
        {"prompt_ids": [-1]},
        {"prompt": [{"role": "user"}, 3]},
    ]
    stand.send(Encode(tuple(range(len(rows)))), *(json.dumps(row).encode() for row in rows))
    answer, frames = await stand.expect(PromptsEncoded)
    assert answer.encoded == ((0, 4), (1, 4), (2, 2))
    assert frames == (ids("2+2="), ids("1+1="), int32(5, 6))
    reasons = dict(answer.refused)
    assert list(reasons) == [3, 4, 5, 6, 7]
    assert "8 tokens; `rollout.max_prompt_tokens` allows 6" in reasons[3]
    assert "The prompt is empty" in reasons[4]
    assert "`prompt` is NoneType" in reasons[5]
    assert "expected a list of token ids" in reasons[6]


async def test_responses_without_an_end_are_told_once_in_the_log(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    process = await task("good", is_supervised=True)
    await stand.expect(Ready)
    row = json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "response": "="}).encode()
    for group in range(2):
        stand.send(Encode((group,)), row)
        assert (await stand.expect(ExamplesEncoded))[0].encoded == ((group, 4, 1),)
    stand.send(Close("The run is over.", False))
    _, log = await exit_of(process)
    assert log.count("Of the first 1 rows, no response ends in a token that engines stop at") == 1


async def test_a_printing_function_scores_and_torch_is_not_loaded(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    process = await task("good", processes=2)
    await stand.expect(Ready)
    for group in range(6):
        ask(stand, group, "4", "4", "5")
    scored = [(await stand.expect(GroupScored))[0] for _ in range(6)]
    assert sorted(s.group for s in scored) == list(range(6))
    assert {s.rewards for s in scored} == {(1.0, 0.0)}
    host = psutil.Process(process.pid)
    assert not [m.path for m in host.memory_maps() if "libtorch" in m.path]
    children = [child.pid for child in host.children()]
    assert len(children) == 2
    stand.send(Close("The run is over.", False))
    code, log = await exit_of(process)
    assert code == 0
    assert "a print must not corrupt the pipe" in log
    for pid in children:
        assert not psutil.pid_exists(pid)


async def test_a_killed_worker_leaves_no_child_even_in_the_middle_of_a_call(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    process = await task("moody", timeout_s=600.0)
    await stand.expect(Ready)
    ask(stand, 0, "sleep", "4")
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while b"asleep" not in await process.stderr.readline():
            continue
    children = psutil.Process(process.pid).children(recursive=True)
    assert "sleep" in {child.name() for child in children}
    process.kill()
    for child in children:
        with suppress(ProcessLookupError):
            await gone(child.pid)


async def test_an_async_function_keeps_its_process_and_its_loop(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    await task("patient")
    await stand.expect(Ready)
    for group in range(3):
        ask(stand, group, "4", "4", "5")
        scored, _ = await stand.expect(GroupScored)
        assert scored.rewards == (group + 1.0, group + 1.0)


async def test_a_moody_function_fails_its_own_group_and_no_other(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    process = await task("moody", timeout_s=4.0, processes=2)
    await stand.expect(Ready)
    moods = {"hang": "longer than", "die": "exit code 9", "raise": "raised LookupError: no such thing",
             "nan": "returned nan of type float", "exit": "raised SystemExit: enough"}  # fmt: skip
    for group, mood in enumerate(moods):
        ask(stand, group, mood, "4", attempt=3)
    ask(stand, 7, "4", "4")
    failures = {}
    for _ in moods:
        failed, _ = await stand.expect(ScoreFailed)
        failures[failed.group] = failed
    for group, words in enumerate(moods.values()):
        assert words in failures[group].reason
        assert failures[group].attempt == 3
        assert failures[group].row.endswith("characters)")  # shown to people, so shortened
    assert "rewards.py" in failures[2].reason  # the traceback names the line
    ask(stand, 8, "4", "4")  # the dead were replaced
    assert [(await stand.expect(GroupScored))[0].group for _ in range(2)] == [7, 8]
    descendants = psutil.Process(process.pid).children(recursive=True)
    assert not [
        child for child in descendants if child.name() == "sleep"
    ]  # what hung was killed with its family
    process.send_signal(signal.SIGTERM)
    await stand.expect(Detach)
    assert (await exit_of(process))[0] == 0
    for child in descendants:
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_tokens_that_are_no_text_fail_their_group_and_not_the_worker(
    stand: Stand, task: Callable[..., Awaitable[Process]]
) -> None:
    await task("good")
    await stand.expect(Ready)
    row = json.dumps({"prompt": "2+2=", "answer": "4"}).encode()
    stand.send(Score(0, 0, (ScoreItem(0, "stop", (Segment(0, 0, 1),)),)), row, ids("2+2="), int32(-1))
    failed, _ = await stand.expect(ScoreFailed)
    assert "cannot turn these tokens into text" in failed.reason
    ask(stand, 1, "4", "4")
    assert (await stand.expect(GroupScored))[0].group == 1


@pytest.mark.parametrize(
    ("function", "words"), [("unknown", "none of these is a response"), ("goood", "`good`")]
)
async def test_a_function_that_cannot_be_used_fails_the_worker_in_words(
    stand: Stand, task: Callable[..., Awaitable[Process]], function: str, words: str
) -> None:
    process = await task(function)
    failed, _ = await stand.expect(WorkerFailed)
    assert "`reward.function` cannot be used" in failed.reason
    assert words in failed.reason
    assert (await exit_of(process))[0] == 1


async def test_a_worker_that_finds_no_controller_exits_with_2(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers.host", str(tmp_path / "nowhere"), "--role", "reward",
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    code, log = await exit_of(process)
    assert code == 2
    assert "neither an endpoint nor a run directory" in log
