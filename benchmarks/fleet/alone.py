"""The hot path without sockets: `python -m benchmarks.fleet.alone [--instances 64] [--together 8]`.

What the fleet does to a controller, in one process and as fast as it goes: real bytes are decoded, written
with their payload, stepped, answered and encoded, so many messages in a turn. Each part is timed by the CPU
time of this thread, so a busy machine distorts little, and two trees can be compared. Sockets, their thread
and the loop are not in it: those are what the fleet shows beyond. `--by_kind` takes each message as a turn of
its own and says what those of a kind cost, progress per delta; the tenth percentile is nearly what they cost
on a quiet machine.
"""

import argparse
import heapq
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.fleet.emulator import ITEM, LOGPROBS, PROMPT_TOKENS, TOKENS
from benchmarks.fleet.rules import PUBLISH_S, SCORE_S, STEP_S, Rules, config, make_instance, rows
from controller.config.strategies import load_strategies
from controller.core import commands, events
from controller.core.core import Core
from controller.core.events import Event
from controller.durability.store import Store
from controller.host.collector import Collector, rare_collections
from controller.host.stepper import Stepper
from protocol import messages
from protocol.messages import Attach, Message
from protocol.wire.codec import Packet, decode, encode
from protocol.wire.sockets import PAUSE_S
from workers.simulated import SimulatedReward, SimulatedRollout, SimulatedTrainer, TrainerTimes

Frames = tuple[bytes, ...]
COLLECT = "look for garbage, also of the workers"


class Parts:
    """CPU time of this thread by part."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()

    def time(self, part: str, since: float) -> float:
        """Count what was spent since then for this part; returns now."""
        now = time.thread_time()
        self.spent_s[part] += now - since
        return now


class Alone:
    """A controller's parts, and workers that are called."""

    def __init__(self, folder: Path, rules: Rules, together: int) -> None:
        self.rules, self.together, self.parts = rules, together, Parts()
        made = self.config = config(folder, rules)
        self.run_dir = folder / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.store = Store(self.run_dir / "run.db", durability=made.run.durability)
        self.stepper = Stepper(self.store, Core(made, load_strategies(made)), on_skip=print)
        self.now, self.count, self.deltas = 0.0, 0, 0
        self.collector = Collector()
        self.waiting: list[tuple[Event | list[bytes], Frames | str]] = [(events.Started(events.RULES), ())]
        self.workers: dict[str, SimulatedRollout | SimulatedReward | SimulatedTrainer] = {}
        self.due: list[tuple[float, str]] = []
        self.rows, self.read = rows(), 0
        times = TrainerTimes(0.0, STEP_S, 0.0, PUBLISH_S)
        self._attach("trainer", "trainer", SimulatedTrainer(times, now=0.0))
        for number in range(-(-rules.instances // 64)):
            reward = SimulatedReward(
                number, prompt_tokens=PROMPT_TOKENS, score_s=SCORE_S, attach_s=0.0, processes=8, now=0.0
            )
            self._attach("reward", f"reward-{number}", reward)
        for number in range(rules.instances):
            self._attach("rollout", f"rollout-{number}", make_instance(rules, number, now=0.0))

    def _attach(self, role: messages.Role, name: str, worker) -> None:
        peer = f"{len(self.workers):032x}"
        self.workers[peer] = worker
        self._say(peer, [Attach(role, name, 1, "here")])

    def _say(self, peer: str, said: list[Message], heard: int = 0) -> None:
        for message in said:
            frames: Frames = ()
            if isinstance(message, messages.Generated):
                count = sum(frame.size for frame in message.incoming_frames()[:1])
                frames = (TOKENS[: ITEM * count], LOGPROBS[: ITEM * count])
                self.deltas += len(message.deltas)
            elif isinstance(message, messages.PromptsEncoded):
                frames = (TOKENS[: ITEM * PROMPT_TOKENS],) * heard
            self.waiting.append((encode(Packet(1, 0, message, frames)), peer))
        due = self.workers[peer].next_wake_s()
        if due is not None:
            heapq.heappush(self.due, (due, peer))

    def run(self, until: float) -> None:
        """All that happens until then."""
        while True:
            while self.waiting:
                batch, self.waiting = self.waiting[: self.together], self.waiting[self.together :]
                self._turn(batch)
            tick = self.stepper.core.next_deadline()
            due = self.due[0][0] if self.due else until
            if min(due, until if tick is None else tick) >= until:
                return
            if tick is not None and tick < due:
                self.now = max(self.now, tick)
                self.waiting.append((events.Tick(), ()))
                continue
            self.now = max(self.now, due)
            end = self.now + PAUSE_S if self.together > 1 else self.now  # what one drain would find
            while self.due and self.due[0][0] <= end:
                due, peer = heapq.heappop(self.due)
                if (at := self.workers[peer].next_wake_s()) is not None and at <= due:
                    self._say(peer, self.workers[peer].wake(due))
            self.now = max(self.now, end)

    def _turn(self, batch) -> None:
        parts, turn, began = self.parts, list[tuple[Event, Frames]](), time.thread_time()
        for what, of in batch:
            if isinstance(what, list):
                packet = decode(what)
                turn.append((events.Received(of, packet.message), packet.frames))
            else:
                turn.append((what, of))
        self.count += len(turn)
        began = parts.time("decode", began)
        wanted = self.stepper.turn(self.now, turn)
        began = parts.time("write and step", began)
        for command in wanted:
            if isinstance(command, commands.Send):
                frames = encode(Packet(1, 0, command.message, self.store.fetch(command.message)))
                began = parts.time("answer", began)
                self._answer(command.peer, command.message, len(frames) - 1)
                began = time.thread_time()
            elif isinstance(command, commands.ReadPrompts):
                new = tuple(msgspec.json.encode(next(self.rows)) for _ in range(command.count))
                self.waiting.append((events.PromptsRead(self.read, command.count, False), new))
                self.read += command.count
            elif isinstance(command, commands.DropPayload):
                self.stepper.doom(command.groups)
        began = time.thread_time()
        self.collector.after(len(turn) + len(wanted))
        parts.time(COLLECT, began)

    def _answer(self, peer: str, message: Message, frames: int) -> None:
        worker = self.workers[peer]
        said = list[Message]()
        while (at := worker.next_wake_s()) is not None and at <= self.now:
            said += worker.wake(at)
        self._say(peer, said + worker.handle(self.now, message), frames)


class ByKind:
    """CPU time of turns of one message, by what it is; progress of many responses by the delta."""

    def __init__(self, alone: Alone) -> None:
        self._alone, self._turn = alone, alone._turn
        self.spent_us: dict[str, list[float]] = {}
        alone.together, alone._turn = 1, self.turn  # type: ignore[method-assign]

    def turn(self, batch) -> None:
        """As `Alone._turn`."""
        ((what, _),) = batch
        said = decode(what).message if isinstance(what, list) else what
        kind, deltas = type(said).__name__, 1
        if isinstance(said, messages.Generated) and "" in said.endings:
            kind, deltas = "a delta of progress", len(said.groups)
        before = sum(self._alone.parts.spent_s.values())
        self._turn(batch)
        spent_s = sum(self._alone.parts.spent_s.values()) - before
        self.spent_us.setdefault(kind, []).append(1e6 * spent_s / deltas)

    def tell(self) -> None:
        """Print a line for each kind."""
        for kind, found in sorted(self.spent_us.items()):
            found.sort()
            tenth, median = found[len(found) // 10], found[len(found) // 2]
            print(f"  {kind}: {len(found)} turns, p10 {tenth:.2f} us, median {median:.2f} us")


def timed(kind: type, name: str, parts: Parts, part: str) -> None:
    """Count a method as a part of its own."""
    method = getattr(kind, name)

    def call(*arguments, **options):
        since = time.thread_time()
        try:
            return method(*arguments, **options)
        finally:
            parts.time(part, since)

    setattr(kind, name, call)


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="emulated, that count")
    parser.add_argument("--warm_up", type=float, default=4.0, help="emulated, before them")
    parser.add_argument("--together", type=int, default=8, help="messages of a turn, at most")
    parser.add_argument("--profile", default="", help="file for cProfile")
    parser.add_argument("--by_kind", action="store_true", help="a turn for each message")
    Rules.add_to(parser)
    options = parser.parse_args()
    rules = Rules.of(options)
    with tempfile.TemporaryDirectory() as folder, rare_collections():
        alone = Alone(Path(folder), rules, options.together)
        alone.run(options.warm_up)
        if options.by_kind:
            kinds = ByKind(alone)
            alone.run(options.warm_up + options.seconds)
            kinds.tell()
            return
        timed(Stepper, "_write", alone.parts, "of that, write")
        before, deltas = alone.count, alone.deltas
        alone.parts.spent_s.clear()
        if options.profile:
            import cProfile

            profile = cProfile.Profile(time.thread_time)
            profile.enable()
        alone.run(options.warm_up + options.seconds)
        if options.profile:
            profile.disable()
            profile.dump_stats(options.profile)
        count, deltas = alone.count - before, alone.deltas - deltas
        spent = alone.parts.spent_s
        total = sum(seconds for part, seconds in spent.items() if not part.startswith("of that"))
        print(
            f"{rules.instances} x {rules.running}, {options.together} together, "
            f"load {os.getloadavg()[0]:.0f}: {count / options.seconds:.0f} events/s, "
            f"{deltas / options.seconds:.0f} deltas/s; {100 * total / options.seconds:.1f} % of a core, "
            f"{1e6 * total / max(1, count):.0f} us an event, {1e6 * total / max(1, deltas):.2f} us a delta"
        )
        for part, seconds in spent.items():
            print(f"  {part}: {1e6 * seconds / count:.0f} us an event")


if __name__ == "__main__":
    main()
