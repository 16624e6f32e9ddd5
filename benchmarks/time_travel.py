"""What a jump through a run's history takes: `python -m benchmarks.time_travel [--events 100000]`.

Simulates a run of the quickstart's size whose journal has about so many events (or takes `--run RUN`), makes
the pass over the history that the view makes in the background, and then prints: seconds of the pass, what
it leaves on the disk and in memory, random jumps, steps forward and back, the life of random groups, whether
the core at random events gives what the journal's fingerprints say that it gave, and whether the whole core
there is, bit for bit, the one that goes through all events in order.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from statistics import quantiles

import psutil

from controller.config.models import Config
from controller.durability.fingerprint import fingerprint
from controller.durability.image.freezer import Freezer
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.past.kept_past import NAME
from controller.view.shown_run import ShownRun
from tests.support.recorded_run import record

EVENTS_PER_STEP = 330  # of the quickstart as it is simulated


def made(folder: Path, events: int) -> Path:
    """A simulated run of the quickstart's size with about so many events."""
    config = Config.model_validate(
        {
            "run": {"steps": max(4, events // EVENTS_PER_STEP)},
            "rollout": {
                "instances": 2,
                "group_size": 16,
                "max_prompt_tokens": 40,
                "max_response_tokens": 144,
            },
            "trainer": {"batch_groups": 32},
            "staleness": {"max_staleness": 2, "in_flight_batches": 2.0},
            "simulation": {"pull_s": 0.05, "attach_s": 0.1, "train_token_s": 1e-4},
        }
    )
    record(folder / "run", config, snapshot_every=4_500)
    return folder / "run"


def spread(name: str, times: list[tuple[float, float]]) -> None:
    """One line: median, p95 and worst by the clock, and p95 of processor time, which load leaves alone."""
    clock, processor = (sorted(column) for column in zip(*times, strict=True))
    cuts, used = ((quantiles(one, n=20) if len(one) > 1 else one * 20) for one in (clock, processor))
    print(
        f"{name:<32}{len(times):>5} times  median {cuts[9] * 1e3:7.0f} ms  p95 {cuts[18] * 1e3:7.0f} ms  "
        f"worst {clock[-1] * 1e3:7.0f} ms  processor p95 {used[18] * 1e3:7.0f} ms",
        flush=True,
    )


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds that it takes, by the clock and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - used


def main() -> int:
    """1 if the core at an event is not the one that was there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--run", default="")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--states", type=int, default=0, help="compare so many states, and nothing else")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(words.run) if words.run else made(Path(folder), words.events)
        run = ShownRun(path)
        return states(run, words.states) if words.states else measure(run, words.times)


def measure(run: ShownRun, times: int) -> int:
    """Print all figures; 1 if a fingerprint differs."""
    facts, dice = run.facts(), random.Random(1)
    last, size_mb = facts["last"], (run.path / "run.db").stat().st_size / 1e6
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    print(f"{last:,} events, {facts['until_s']:,.0f} s of the run, run.db {size_mb:.0f} MB")
    spread("the page Now, first", [timed(lambda: run.now({}))])

    def passed() -> None:
        run.timeline(None, None, "")
        run.join()

    seconds, used = timed(passed)
    kept_mb = sum(kept.stat().st_size for kept in run.path.glob(NAME)) / 1e6
    print(
        f"the pass over the history: {seconds:.1f} s, {facts['until_s'] / seconds:.1f} times real time, "
        f"{used:.1f} s of the processor; {NAME} has {kept_mb:.0f} MB, "
        f"and this process {psutil.Process().memory_info().rss / 1e6:.0f} MB of memory"
    )
    spread("the timeline of the whole run", [timed(lambda: run.timeline(None, None, "")) for _ in range(10)])
    numbers = [dice.randint(facts["first"], last) for _ in range(times)]
    spread("random jumps (the page Now)", [timed(lambda n=n: run.now({"event": str(n)})) for n in numbers])
    back, forward = [], []
    for number in numbers[:: max(1, times // 25)]:
        run.now({"event": str(number)})
        back += [timed(lambda n=number - i: run.moment({"event": str(n)})) for i in range(1, 5)]
        forward += [timed(lambda n=number - 4 + i: run.moment({"event": str(n)})) for i in range(1, 5)]
    spread("one event back", back)
    spread("one event forward", forward)
    groups = dice.sample(range(max(20, last // 12)), 20)
    spread("the life of a group", [timed(lambda g=g: run.group(g, {})) for g in groups])
    return fingerprints(run, numbers)


def fingerprints(run: ShownRun, numbers: list[int]) -> int:
    """Compare the commands of the core at each event with what the journal says of them."""
    known = {}
    for number in numbers:
        with run.replayed() as replayed:
            turn = replayed.with_turn(number).turn
            if turn is not None and turn.recorded.fingerprint is not None:
                known[number] = turn.recorded.fingerprint == fingerprint(turn.commands)
    wrong = [number for number, is_equal in known.items() if not is_equal]
    print(f"{len(known) - len(wrong)} of {len(known)} random events give the recorded commands bit for bit")
    return 1 if wrong else 0


def states(run: ShownRun, times: int) -> int:
    """Compare the cores that jumps reach with the one that steps through all events; 1 if one differs."""
    facts, dice = run.facts(), random.Random(2)
    numbers = dice.sample(range(facts["first"] + 1, facts["last"] + 1), times)
    recording, wanted, expected = Recording(run.path), set(numbers), dict[int, bytes]()
    core = recording.make_core()
    for turn in turns(recording, core):
        if turn.recorded.number in wanted:
            expected[turn.recorded.number] = blake2b(Freezer().freeze(core)).digest()
    run.timeline(None, None, "")
    run.join()
    equal = 0
    for number in numbers:
        if number in expected and run.now({"event": str(number)})["number"] == number:
            with run.replayed() as replayed:
                equal += blake2b(replayed.image()).digest() == expected[number]
    print(f"{equal} of {len(expected)} states at random events of {facts['last']:,} are those of one pass")
    return 0 if equal == len(expected) else 1


if __name__ == "__main__":
    sys.exit(main())
