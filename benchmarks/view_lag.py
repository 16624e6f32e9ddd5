"""How old what a page does not show is, by the processor's clock: `python -m benchmarks.view_lag`.

Simulates 1,024 instances with 100,000 responses in hand (or takes `--run RUN`). Its journal grows by
`--rate` events a second, and no event comes before the core could decide on those before it, as in a run. A
view follows it and is asked as the page Now asks. Time goes by only while the view works or waits, so that
other work on the machine changes little: what is printed is what a page sees of a view that has a core of its
own, without the socket and the browser (`benchmarks.view_scale` has them). Once the view reads only when it
is asked, and once between the looks as well, as it does.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import zlib
from bisect import bisect_right
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from benchmarks.view import made
from benchmarks.view_scale import AGE_S, add_options, due_times, p95
from controller.durability.image.classes import InParts
from controller.durability.recording import Recording
from controller.host.collector import rare_collections
from controller.view import shown_run
from controller.view.door.server import rarer_collections
from controller.view.followed_journal import FollowedJournal, Look
from controller.view.past.newest import NewestCore
from controller.view.past.pursuit import Pursuit, late_after
from controller.view.past.replayed_core import NEAR, ReplayedCore, StillReading
from controller.view.shown_run import ShownRun
from controller.view.site import PATIENCE_S

AGAIN_S = 0.03  # until who waits for the journal asks again, as controller/view/pages/main.js


class Clock:
    """The processor's time of this thread, and what was waited."""

    def __init__(self) -> None:
        self.set(0.0)

    def __call__(self) -> float:
        """Seconds."""
        return time.thread_time() + self._off_s

    def set(self, now: float) -> None:
        """It is that late."""
        self._off_s = now - time.thread_time()


class Stepped(Pursuit):
    """A pursuit that is told when to read."""

    def begin(self) -> None:
        """There is no thread."""


class GrowingJournal(FollowedJournal):
    """A journal that ends where the clock says."""

    def __init__(self, path: Path, first: int, due_s: list[float], clock: Clock) -> None:
        super().__init__(path, is_live=lambda: True)
        self._path, self._first, self._due_s, self._clock = path, first, due_s, clock

    def look(self) -> Look:
        """As far as it is there."""
        found = Recording(self._path)
        found.last = self._first + bisect_right(self._due_s, self._clock())
        found.end = found.mark(found.last)
        found.until_s = found.end[-1][0] if found.end else 0.0
        return Look(found, True)


class GrowingRun(ShownRun):
    """A run whose journal grows by the clock, and is read on when it is told to."""

    def __init__(self, path: Path, first: int, due_s: list[float], clock: Clock) -> None:
        super().__init__(path)
        self._journal, self._clock = GrowingJournal(path, first, due_s, clock), clock
        self.pursuit = Stepped(self._read_on, clock=clock)

    def begin_at(self, number: int, image: InParts) -> None:
        """Have read all up to the first event, from the core after event `number`."""
        self._clock.set(-1e9)  # nothing more is there yet
        known = self._look()
        known.pursuit = self.pursuit
        known.newest._begun(known.recording).offer(number, image)
        self.now({})

    def state(self) -> str:
        """It goes on."""
        return "live"


class Page:
    """Asks as Now does, and keeps how old what it does not show was."""

    def __init__(self, run: GrowingRun, first: int, due_s: list[float], clock: Clock) -> None:
        self._run, self._shown, self._clock = run, first, clock
        self._first, self._due_s = first, due_s
        self.asks_at, self._began = 0.0, -1.0
        self.at_first, self.at_last = list[float](), list[float]()

    def ask(self) -> None:
        """Once, and say when again."""
        began = self._began if self._began >= 0 else self._clock()
        try:
            found = self._run.now({}, patience_s=PATIENCE_S, find="")
        except StillReading:
            self._began, self.asks_at = began, self._clock() + AGAIN_S
            return
        zlib.compress(json.dumps(found, ensure_ascii=False).encode(), 1)
        now = self._clock()
        self.at_last.append(self._age(now))
        self._shown = found["number"]
        self.at_first.append(self._age(now))
        took, self._began = now - began, -1.0
        self.asks_at = now + max(took, AGE_S - 2 * took)

    def _age(self, now: float) -> float:
        place = self._shown - self._first
        return max(0.0, now - self._due_s[place]) if place < len(self._due_s) else 0.0


def follow(path: Path, first: int, image: InParts, due_s: list[float], *, reads_on: bool) -> None:
    """Print what one page sees, whose view reads on between its looks, or does not."""
    clock = Clock()
    run = GrowingRun(path, first, due_s, clock)
    with patch.object(shown_run, "late_after", lambda seconds: late_after(seconds, clock)):
        run.begin_at(first - NEAR, image)
        page, reads_at, used = Page(run, first, due_s, clock), 0.0, time.thread_time()
        clock.set(0.0)
        while clock() < due_s[-1]:
            if reads_on and run.pursuit.is_wanted and reads_at < page.asks_at:
                clock.set(max(clock(), reads_at))
                reads_at = run.pursuit.read() + clock()
            else:
                clock.set(max(clock(), page.asks_at))
                page.ask()
        spent = (time.thread_time() - used) / clock()
    at_first, at_last = page.at_first[1:], page.at_last[1:]
    print(
        f"{'read on between the looks' if reads_on else 'read when a page asks'}: {len(at_first)} looks in "
        f"{clock():.0f} s; p95 of the age of what is not shown at arrival {p95(at_first):.2f} s, before the "
        f"next {p95(at_last):.2f} s (limit 1 s), longest {max(at_last):.2f} s; {spent:.2f} s of the "
        "processor each second",
        flush=True,
    )


def measure(path: Path, *, share: float, rate: float, seconds: float) -> None:
    """The same part of a journal, twice."""
    replayed = ReplayedCore(Recording(path), keyframes_bytes=1, goes_back=False)
    first = int(share * replayed.last)
    replayed.at(first - NEAR)
    image = replayed.image_in_parts()
    replayed.at(first)
    assert image is not None, "the strategies are built in"
    due_s = due_times(replayed, min(replayed.last, first + int(rate * seconds)), rate)
    for reads_on in (False, True):
        behind = nullcontext() if reads_on else patch.object(NewestCore, "near", lambda self, recording: None)
        with behind, rarer_collections():
            gc.freeze()  # a view has no other cores
            follow(path, first, image, due_s, reads_on=reads_on)


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
        each = words.in_hand / words.instances
        path = Path(words.run) if words.run else made(Path(folder), words.instances, words.steps, each)
        with rare_collections():
            measure(path, share=words.share, rate=words.rate, seconds=words.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
