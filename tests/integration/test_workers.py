"""Rollout and reward workers as real processes, against a bare server in the place of the controller."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from protocol.ids import PeerId
from protocol.messages import (
    Abort,
    Beat,
    Close,
    Delta,
    Detach,
    Encode,
    Generated,
    GenerationFailed,
    GroupScored,
    InstanceStatus,
    Interrupt,
    Message,
    PromptsEncoded,
    Pull,
    Pulled,
    PullFailed,
    Ready,
    Route,
    Score,
    ScoreFailed,
    ScoreItem,
    Segment,
    Welcome,
    WorkerFailed,
)
from protocol.settings import WorkerSettings
from protocol.transport import Server

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60  # nothing here takes ten seconds; a test that hangs fails
LETTERS = "ab0123456789+="
Kind = TypeVar("Kind", bound=Message)


class Stand:
    """A server that welcomes every worker, and the worker processes that a test starts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peer: PeerId = ""
        self._settings = ""
        self._heard: list[tuple[Message, tuple[bytes, ...]]] = []
        self._news = asyncio.Event()
        self._processes: list[Process] = []
        self.server = Server(
            f"ipc://{directory}/socket", on_message=self._on_message, on_fault=self._on_fault
        )
        self.server.start()
        (directory / "address").write_text(self.server.endpoint)

    async def start(self, role: str, **settings: Any) -> Process:
        """A worker process, by the run directory."""
        self._settings = WorkerSettings.model_validate(
            {
                "run_dir": str(self.directory),
                "seed": 0,
                "steps": 1,
                "model": {"path": str(self.directory)},
                "rollout": {"progress_s": 0.02, "status_s": 0.02, **settings.get("rollout", {})},
                "reward": settings.get("reward", {}),
                "trainer": {},
            }
        ).model_dump_json()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.host", str(self.directory), "--role", role, "--die-with-parent",
            cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def send(self, message: Message, *frames: bytes) -> None:
        self.server.send(self.peer, message, frames)

    async def expect(self, kind: type[Kind]) -> tuple[Kind, tuple[bytes, ...]]:
        """The next message of this kind; others stay for later, but a failed worker fails the test."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for place, (message, frames) in enumerate(self._heard):
                    if isinstance(message, kind):
                        del self._heard[place]
                        return message, frames
                    assert not isinstance(message, WorkerFailed), message.reason
                self._news.clear()
                await self._news.wait()

    async def until_idle(self) -> InstanceStatus:
        """The report that an instance sends at once when it runs dry."""
        while (status := (await self.expect(InstanceStatus))[0]).running:
            continue
        return status

    def _hear(self, message: Message, frames: tuple[bytes, ...] = ()) -> None:
        self._heard.append((message, frames))
        self._news.set()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        self.server.close()

    def _on_message(self, peer: PeerId, message: Message, frames: tuple[bytes, ...]) -> None:
        if type(message).__name__ == "Attach":
            self.peer = peer
            self.server.send(peer, Welcome(0.05, 30.0, self._settings))
        elif not isinstance(message, Beat):
            self._hear(message, frames)

    def _on_fault(self, peer: PeerId, reason: str) -> None:
        self._hear(WorkerFailed(f"The server dropped the worker: {reason}"))


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    made = Stand(tmp_path)
    yield made
    await made.close()


def int32(*numbers: int) -> bytes:
    return np.asarray(numbers, dtype="<i4").tobytes()


async def exit_of(process: Process) -> tuple[int | None, str]:
    async with asyncio.timeout(LIMIT_S):
        _, log = await process.communicate()
    return process.returncode, log.decode()


async def gone(pid: int) -> None:
    """Returns when this process, not our child, has ended."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


# -- rollout -----------------------------------------------------------------------------------------------


def rollout(factory: str) -> dict[str, Any]:
    return {"engine": f"{ROOT}/tests/integration/scripted_engine.py:{factory}"}


class Heard:
    """What was generated, put together by attempt."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int, int], list[float]] = {}
        self.endings: dict[tuple[int, int, int], str] = {}
        self.versions: dict[tuple[int, int, int], set[int]] = {}

    def take(self, message: Generated, frames: tuple[bytes, ...]) -> None:
        tokens = np.frombuffer(frames[0], dtype="<i4").tolist()
        logprobs = np.frombuffer(frames[1], dtype="<f4").tolist()
        for delta in message.deltas:
            key = (delta.group, delta.member, delta.attempt)
            mine = self.tokens.setdefault(key, [])
            assert delta.start == len(mine)
            assert key not in self.endings
            mine += tokens[: delta.count]
            self.logprobs.setdefault(key, []).extend(logprobs[: delta.count])
            self.versions.setdefault(key, set()).add(delta.policy_version)
            del tokens[: delta.count], logprobs[: delta.count]
            if delta.ending:
                self.endings[key] = delta.ending
        assert tokens == logprobs == []

    async def until(self, stand: Stand, condition: Callable[["Heard"], bool]) -> None:
        while not condition(self):
            self.take(*await stand.expect(Generated))


async def test_a_rollout_worker_generates_continues_refuses_and_reports_its_load(stand: Stand) -> None:
    await stand.start("rollout", rollout=rollout("make"))
    assert (await stand.expect(Ready))[0] == Ready(0, 4, 1000)
    stand.send(Route(1, 0, 0, 5, 3, ()), int32(7, 7), b"")
    stand.send(Route(1, 1, 2, 5, 3, (Segment(1, 0, 2),)), int32(7, 7), int32(0, 1))
    heard = Heard()
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.tokens == {(1, 0, 0): [0, 1, 2], (1, 1, 2): [2, 3, 4]}  # only what is new
    assert heard.logprobs[1, 1, 2] == pytest.approx([-0.003, -0.004, -0.005])
    assert set(heard.endings.values()) == {"length"}
    assert (await stand.until_idle()).decode_tokens == 6
    stand.send(Route(2, 0, 0, 5, 3, ()), int32(*range(9)), b"")
    failed, _ = await stand.expect(GenerationFailed)
    assert failed == GenerationFailed(2, 0, 0, "A prompt of 9 tokens can never run; at most 8 do.")


async def test_an_interrupt_hands_back_every_token_once_and_an_abort_nothing(stand: Stand) -> None:
    await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    for member in range(3):
        stand.send(Route(1, member, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: len(h.tokens) == 3 and min(map(len, h.tokens.values())) > 100)
    stand.send(Abort(((1, 2, 0),)))
    stand.send(Interrupt(((1, 0, 0), (1, 2, 0), (9, 9, 9))))  # the last two are not there any more
    stand.send(Interrupt(((1, 1, 0),)))
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.endings == {(1, 0, 0): "interrupt", (1, 1, 0): "interrupt"}
    for tokens in heard.tokens.values():
        assert tokens == list(range(len(tokens)))
    await stand.until_idle()
    # an attempt interrupted before its first token comes back empty
    stand.send(Route(3, 0, 0, 0, 10**6, ()), int32(7), b"")
    stand.send(Interrupt(((3, 0, 0),)))
    generated, frames = await stand.expect(Generated)
    assert generated == Generated((Delta(3, 0, 0, 0, 0, 0, "interrupt"),))
    assert frames == (b"", b"")


async def test_a_pull_swaps_the_weights_or_says_why_not(stand: Stand) -> None:
    torch = pytest.importorskip("torch")
    from workers.weights import publish

    good = publish(stand.directory / "weights", 3, {"weight": torch.ones(4)})
    wrong = publish(stand.directory / "weights", 4, {"bias": torch.ones(4)})
    await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    stand.send(Route(1, 0, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: bool(h.tokens))
    stand.send(Pull(3, str(good.location), good.digest))
    stand.send(Pull(4, str(wrong.location), wrong.digest))
    stand.send(Pull(5, str(good.location), "0" * len(good.digest)))
    stand.send(Pull(6, str(stand.directory / "nowhere"), good.digest))
    pulled, _ = await stand.expect(Pulled)
    assert (pulled.policy_version, pulled.digest) == (3, good.digest)
    failures = [(await stand.expect(PullFailed))[0] for _ in range(3)]
    assert [failed.policy_version for failed in failures] == [4, 5, 6]
    assert "Expected the tensor `weight`" in failures[0].reason
    stand.send(Interrupt(((1, 0, 0),)))
    await heard.until(stand, lambda h: bool(h.endings))
    assert heard.versions[1, 0, 0] <= {0, 3}  # no delta carries two; the failed ones changed nothing


async def test_a_signal_hands_everything_back_and_leaves(stand: Stand) -> None:
    process = await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    for member in range(2):
        stand.send(Route(1, member, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: len(h.tokens) == 2)
    process.send_signal(signal.SIGINT)
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.endings == {(1, 0, 0): "interrupt", (1, 1, 0): "interrupt"}
    for tokens in heard.tokens.values():
        assert tokens == list(range(len(tokens)))
    await stand.expect(Detach)
    code, log = await exit_of(process)
    assert code == 0
    assert "SIGINT: handing back" in log


async def test_close_ends_a_worker_with_the_code_that_it_means(stand: Stand) -> None:
    for is_fault, expected in ((False, 0), (True, 1)):
        process = await stand.start("rollout", rollout=rollout("make"))
        await stand.expect(Ready)
        stand.send(Close("The run is over.", is_fault))
        code, log = await exit_of(process)
        assert (code, "The run is over." in log) == (expected, True)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_none", "This engine cannot be made."),
        ("make_nothing", "has no `make_nothing`"),
        ("make_broken", "failed with KeyError: 'surprise'"),
    ],
)
async def test_an_engine_that_cannot_be_made_fails_the_worker_in_words(
    stand: Stand, factory: str, words: str
) -> None:
    process = await stand.start("rollout", rollout=rollout(factory))
    failed, _ = await stand.expect(WorkerFailed)
    assert words in failed.reason
    code, log = await exit_of(process)
    assert code == 1
    assert ("Traceback" in log) == (factory == "make_broken")  # a traceback only where nobody foresaw it


# -- reward ------------------------------------------------------------------------------------------------

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

    async def start(function: str, **reward: Any) -> Process:
        reward["function"] = f"{stand.directory}/rewards.py:{function}"
        return await stand.start("reward", reward=reward, rollout={"max_prompt_tokens": 6})

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
    assert "not a list of token ids" in reasons[6]


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
    (child,) = psutil.Process(process.pid).children()
    ask(stand, 0, "sleep", "4")
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while b"asleep" not in await process.stderr.readline():
            continue
    process.kill()
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
    process = await task("moody", timeout_s=2.0, processes=2)
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
