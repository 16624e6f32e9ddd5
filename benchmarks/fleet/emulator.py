"""A process of a fleet: some of its instances, or those that score and train, each behind a link of its own.

`python -m benchmarks.fleet.emulator RUN_DIRECTORY --first N --count M [options]`; `--others` adds the trainer
and the reward workers. It says `running` when each of its instances has something to do, hears `begin` and
`end` on its standard input, and prints after `end` what it has seen between them, as a line of JSON.
Invariant: tokens and logprobs are as many as a report says, and valid; which ones they are says nothing.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from array import array
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf

import numpy as np
import uvloop

from benchmarks.fleet.rules import (
    GROUP_SIZE,
    LONGEST,
    PROMPT_TOKENS,
    PUBLISH_S,
    SCORE_S,
    STEP_S,
    SYMBOLS,
    Rules,
    make_instance,
)
from protocol import messages
from protocol.messages import Attach, Message, Role
from protocol.wire.descriptors import raise_limit
from workers.link.link import Link, LinkClosed
from workers.simulated import SimulatedReward, SimulatedRollout, SimulatedTrainer, TrainerTimes

ITEM = 4  # bytes of a token, and of a logprob
MOST = max(LONGEST * GROUP_SIZE, 1 << 20)
TOKENS = (np.arange(MOST) % SYMBOLS).astype("<i4").tobytes()
LOGPROBS = (-(np.arange(MOST) % 8) / 8).astype("<f4").tobytes()
INSTANCES_PER_SCORER = 64


@dataclass(slots=True)
class Seen:
    """What the members of this process have said and heard since `begin`."""

    messages: int = 0
    deltas: int = 0
    tokens: int = 0
    endings: int = 0
    routes: int = 0
    late_s: array = field(default_factory=lambda: array("d"))
    """How late each word left: the emulation itself was too slow."""
    route_s: array = field(default_factory=lambda: array("d"))
    """From the end of a response to the next Route of its instance."""


class Fleet:
    """The members of this process."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.seen = rules, Seen()
        self.idle = 0  # instances that have had no Route yet
        self.all_run = asyncio.Event()

    def now(self) -> float:
        """In emulated seconds."""
        return time.monotonic() / self.rules.slow


class Member:
    """One worker: its simulated machine and its link."""

    def __init__(
        self, fleet: Fleet, link: Link, machine: SimulatedRollout | SimulatedReward | SimulatedTrainer
    ) -> None:
        self._fleet, self._link, self._machine = fleet, link, machine
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._free: deque[float] = deque()  # when responses ended whose place was not given to another yet
        self._has_run = not isinstance(machine, SimulatedRollout)
        fleet.idle += not self._has_run

    async def run(self) -> None:
        """To the end of the link."""
        try:
            self._wake()
            while True:
                message, frames = await self._link.receive()
                now = self._catch_up()
                self._note(message)
                self._say(self._machine.handle(now, message), frames)
                self._wake()
        except LinkClosed as closed:
            if closed.is_fault:
                raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _catch_up(self) -> float:
        """Say what was due by now, each word at its time; returns now."""
        now = self._fleet.now()
        while (at := self._machine.next_wake_s()) is not None and at <= now:
            said = self._machine.wake(at)
            if said:
                self._fleet.seen.late_s.append((now - at) * self._fleet.rules.slow)
            self._say(said)
        return now

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._catch_up()
        self._say(self._machine.wake(now))
        due = self._machine.next_wake_s()
        if due is not None:
            self._timer = self._loop.call_later((due - now) * self._fleet.rules.slow, self._wake)

    def _note(self, message: Message) -> None:
        seen = self._fleet.seen
        if isinstance(message, messages.Route):
            seen.routes += 1
            if self._free:
                seen.route_s.append(time.monotonic() - self._free.popleft())
            if not self._has_run:
                self._has_run = True
                self._fleet.idle -= 1
                if not self._fleet.idle:
                    self._fleet.all_run.set()
        elif isinstance(message, messages.Pull):
            self._free.clear()  # what comes next goes on with what was interrupted

    def _say(self, said: list[Message], heard: tuple[bytes, ...] = ()) -> None:
        seen = self._fleet.seen
        for message in said:
            seen.messages += 1
            if isinstance(message, messages.Generated):
                count = sum(message.counts)
                ended = sum(ending in ("stop", "length") for ending in message.endings)
                seen.deltas += len(message.groups)
                seen.tokens += count
                seen.endings += ended
                self._free.extend([time.monotonic()] * ended)
                self._link.send(message, TOKENS[: ITEM * count], LOGPROBS[: ITEM * count])
            elif isinstance(message, messages.PromptsEncoded):
                prompt = TOKENS[: ITEM * PROMPT_TOKENS]
                self._link.send(message, *[prompt for _ in heard])
            else:
                self._link.send(message)


async def member(fleet: Fleet, address: str, role: Role, number: int, *, key: str | None = None) -> Member:
    """A worker that is attached; `key`: its file, where the controller has keys."""
    name = "trainer" if role == "trainer" else f"{role}-{number}"
    link = await Link.attach(address, Attach(role, name, os.getpid(), "here"), key=key, limit_s=300.0)
    link._measured_at = inf  # a look at this process would be a look at the threads of a thousand links
    now = fleet.now()
    speed = fleet.rules.speed
    if role == "trainer":
        times = TrainerTimes(0.0, STEP_S / speed, 0.0, PUBLISH_S / speed)
        return Member(fleet, link, SimulatedTrainer(times, now=now))
    if role == "reward":
        scorer = SimulatedReward(
            number, prompt_tokens=PROMPT_TOKENS, score_s=SCORE_S / speed, attach_s=0.0, processes=8, now=now
        )
        return Member(fleet, link, scorer)
    return Member(fleet, link, make_instance(fleet.rules, number, now=now))


async def emulate(options: argparse.Namespace) -> None:
    """Attach all, then answer the parent."""
    raise_limit()
    rules = Rules.of(options)
    fleet, loop = Fleet(rules), asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    who: list[tuple[Role, int]] = [("rollout", options.first + n) for n in range(options.count)]
    if options.others:
        scorers = -(-rules.instances // INSTANCES_PER_SCORER)
        who += [("trainer", 0), *(("reward", number) for number in range(scorers))]
    async with AsyncExitStack() as links, asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []
        for role, number in who:
            one = await member(fleet, options.address, role, number)
            links.push_async_callback(one._link.aclose)
            running.append(tasks.create_task(one.run(), name=f"{role}-{number}"))
        if options.count:
            await fleet.all_run.wait()
        print("running", flush=True)
        cpu_s = time.process_time()
        while order := (await orders.readline()).decode().strip():
            if order == "begin":
                fleet.seen, cpu_s = Seen(), time.process_time()
            else:
                print(json.dumps(_words(fleet.seen, time.process_time() - cpu_s)), flush=True)
        for task in running:
            task.cancel()


def _words(seen: Seen, cpu_s: float) -> dict[str, object]:
    counts = {name: getattr(seen, name) for name in ("messages", "deltas", "tokens", "endings", "routes")}
    return {**counts, "cpu_s": cpu_s, "late_s": list(seen.late_s), "route_s": list(seen.route_s)}


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--others", action="store_true")
    Rules.add_to(parser)
    uvloop.run(emulate(parser.parse_args()))


if __name__ == "__main__":
    main()
