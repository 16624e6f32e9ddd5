"""A worker of a long run: a simulated state machine behind a real link, in real time.

`python -m benchmarks.long_run_worker ADDRESS --role ROLE --name NAME`. Invariants: token i of a response is a
function of its group, member and i, and a prompt is a function of its group, so that whoever gets payload can
tell whether it is the right one; a trainer goes on from its files, refuses a batch that differs from the one
it had for that version, and lists on the disk what it has trained. What is wrong ends the process, with the
reason in its log.
"""

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.long_run_rules import FAULTY, config, prompt_of, tokens_of
from controller.simulation.simulated_workers import Cluster
from protocol import messages
from protocol.errors import NoAnswer
from protocol.messages import Attach, Message, Role
from tests.support.fault_host import Disk, DurableTrainer
from workers.link.link import Link, LinkClosed
from workers.link.parent import die_with_parent
from workers.simulated import SimulatedReward, SimulatedRollout, SimulatedTrainer

SLOW, SLOW_S = 0.05, 2.0  # speed of a straggler, and for how long
REWARD_CAPACITY = 2  # groups at once, so that many wait in the controller
Tag = tuple[int, int, int]


@dataclass(slots=True)
class Files(Disk):
    """A trainer's disk that is one."""

    folder: Path = field(default_factory=Path)

    @classmethod
    def read(cls, folder: Path, *, with_batches: bool = True) -> "Files":
        """What is there now."""
        folder.mkdir(exist_ok=True)
        made = cls(folder=folder)
        if (folder / "state.json").exists():
            state = json.loads((folder / "state.json").read_text())
            made.checkpoint, made.files = state["checkpoint"], set(state["files"])
        if with_batches and (folder / "batches.jsonl").exists():
            for line in (folder / "batches.jsonl").read_text().splitlines():
                version, groups = json.loads(line)
                made.batches[version] = groups
        return made

    def add_batch(self, version: int) -> None:
        """Note a batch that was not trained before."""
        with (self.folder / "batches.jsonl").open("a") as file:
            file.write(json.dumps([version, self.batches[version]]) + "\n")

    def write(self) -> None:
        """All but the batches."""
        aside = self.folder / "state.partial"
        aside.write_text(json.dumps({"checkpoint": self.checkpoint, "files": sorted(self.files)}))
        aside.rename(self.folder / "state.json")


class Worker:
    """One life of one worker, from its attach to the end of its link."""

    def __init__(self, link: Link, *, role: Role, name: str) -> None:
        self._link, self._loop = link, asyncio.get_running_loop()
        self._began = self._loop.time()
        self._dice = random.Random(os.urandom(8))
        self._offsets: dict[Tag, int] = {}  # tokens of a response that an attempt began with
        self._disk = Files.read(Path(link.settings.run_dir) / "disk", with_batches=role == "trainer")
        settings = config(Path(link.settings.run_dir).parent, steps=link.settings.steps)
        self._machine = Cluster(settings, seed=0).make(name, role, 0.0)
        if isinstance(self._machine, SimulatedTrainer):
            self._machine = DurableTrainer(self._machine.times, now=0.0, disk=self._disk)

    @property
    def _now(self) -> float:
        return self._loop.time() - self._began

    async def run(self) -> None:
        """Raises: LinkClosed, AssertionError."""
        while True:
            while (item := self._link.receive_nowait()) is not None:
                self._catch_up()
                self._take(*item)
            self._catch_up()
            self._say(self._machine.wake(self._now))
            due = self._machine.next_wake_s()
            wait_s = None if due is None else max(0.0, due - self._now)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._link.arrived.wait()

    def _no_pull(self, version: int) -> str | None:
        assert isinstance(self._machine, SimulatedRollout)
        if version not in Files.read(self._disk.folder, with_batches=False).files:
            return "It is not there."
        is_first = self._machine.policy_version < 0
        return "It was the dice." if not is_first and self._dice.random() < FAULTY else None

    def _catch_up(self) -> None:
        """Say what was due by now, each thing at its time: the machine counts on being woken then."""
        while (at := self._machine.next_wake_s()) is not None and at <= self._now:
            self._say(self._machine.wake(at))

    # -- what it hears ----------------------------------------------------------------------------------

    def _take(self, message: Message, frames: tuple[bytes, ...]) -> None:
        match message:
            case messages.Encode(groups):
                self._encode(groups, frames)
                return
            case messages.Route():
                self._begin(message, frames)
            case messages.Score(group):
                self._check_score(message, frames)
                if self._dice.random() < FAULTY:
                    self._link.send(messages.ScoreFailed(group, message.attempt, "It was the dice.", "{}"))
                    return
            case messages.Train() | messages.TrainAhead():
                self._train(message, frames)
                return
            case messages.Pull(policy_version) if (reason := self._no_pull(policy_version)) is not None:
                self._link.send(messages.PullFailed(policy_version, reason))
                return
        self._say(self._machine.handle(self._now, message))

    def _encode(self, groups: Iterable[int], frames: tuple[bytes, ...]) -> None:
        prompts = [prompt_of(group) for group in groups]
        for prompt, frame in zip(prompts, frames, strict=True):
            assert prompt == json.loads(frame)["prompt_ids"], f"{frame!r} is not the row of its group"
        encoded = tuple((group, len(prompt)) for group, prompt in zip(groups, prompts, strict=True))
        self._link.send(messages.PromptsEncoded(encoded, ()), *map(_int32, prompts))

    def _begin(self, route: messages.Route, frames: tuple[bytes, ...]) -> None:
        done = sum(segment.count for segment in route.segments)
        assert frames[0] == _int32(prompt_of(route.group)), f"group {route.group} has another prompt"
        assert frames[1] == _int32(tokens_of(route.group, route.member, 0, done)), "other tokens"
        self._offsets[route.group, route.member, route.attempt] = done
        if isinstance(self._machine, SimulatedRollout) and self._dice.random() < FAULTY / 4:
            self._say(self._machine.set_speed(self._now, SLOW))
            self._loop.call_later(SLOW_S, self._recover)

    def _recover(self) -> None:
        assert isinstance(self._machine, SimulatedRollout)
        self._catch_up()
        self._say(self._machine.set_speed(self._now, 1.0))
        self._link.wake()  # its next word is due sooner

    def _check_score(self, score: messages.Score, frames: tuple[bytes, ...]) -> None:
        assert frames[1] == _int32(prompt_of(score.group)), f"group {score.group} has another prompt"
        for item, frame in zip(score.items, frames[2:], strict=True):
            count = sum(segment.count for segment in item.segments)
            assert frame == _int32(tokens_of(score.group, item.member, 0, count)), "other tokens"

    def _train(self, order: messages.Train | messages.TrainAhead, frames: tuple[bytes, ...]) -> None:
        items = order.rest if isinstance(order, messages.Train) else order.items
        tokens = [(i.group, i.member, sum(segment.count for segment in i.segments)) for i in items]
        prompts = [token for i in items for token in prompt_of(i.group)]
        assert frames[0] == _int32(prompts), "other prompts"
        expected = [token for group, member, count in tokens for token in tokens_of(group, member, 0, count)]
        assert frames[1] == _int32(expected), "other tokens"
        assert frames[2] == _logprobs(expected), "other logprobs"
        is_new = order.train_version not in self._disk.batches
        said = self._machine.handle(self._now, order)
        if isinstance(order, messages.Train) and is_new:
            self._disk.add_batch(order.train_version)
        self._say(said)

    # -- what it says -----------------------------------------------------------------------------------

    def _say(self, said: list[Message]) -> None:
        if isinstance(self._machine, SimulatedTrainer) and said:
            self._disk.write()
        for message in said:
            if isinstance(message, messages.Generated):
                tokens = [token for delta in message.deltas for token in self._tokens(delta)]
                self._link.send(message, _int32(tokens), _logprobs(tokens))
            elif isinstance(message, messages.GroupScored):
                coarse = tuple(float(round(reward)) for reward in message.rewards)  # often all the same
                self._link.send(messages.GroupScored(message.group, message.attempt, coarse))
            elif isinstance(message, messages.Ready) and isinstance(self._machine, SimulatedReward):
                self._link.send(messages.Ready(0, REWARD_CAPACITY, 0))
            else:
                self._link.send(message)

    def _tokens(self, delta: messages.Delta) -> list[int]:
        tag = delta[:3]
        first = self._offsets[tag] + delta.start
        if delta.ending:
            del self._offsets[tag]
        return tokens_of(delta.group, delta.member, first, delta.count)


def _int32(tokens: list[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def _logprobs(tokens: list[int]) -> bytes:
    return (-np.asarray(tokens, dtype="<f4") / 8).tobytes()


async def serve(options: argparse.Namespace) -> int:
    """The exit code. One that no controller has started attaches again and again."""
    while True:
        link = None
        try:
            attach = Attach(options.role, options.name, os.getpid(), "here")
            link = await Link.attach(options.address, attach, limit_s=20.0)
            await Worker(link, role=options.role, name=options.name).run()
        except NoAnswer:
            if options.parent:
                return 2
        except LinkClosed as closed:
            if not closed.may_reattach or options.parent:
                return int(closed.is_fault)
        finally:
            if link is not None:
                await link.aclose()


def main() -> None:
    """As workers.host."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--role", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--parent", type=int)
    options = parser.parse_args()
    if options.parent is not None:
        die_with_parent(options.parent)
    sys.exit(asyncio.run(serve(options)))


if __name__ == "__main__":
    main()
