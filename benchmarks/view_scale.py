"""How far a page is behind a large run, and what its view takes: `python -m benchmarks.view_scale`.

Simulates 1,024 instances with 100,000 responses in hand (or takes `--run RUN`), and writes the second half of
its journal into another run directory, event by event at `--rate` a second and none before the core could
decide on those before it, as a controller would. A view of that directory is asked as the page Now asks it,
and so it is printed how old the first event is that an answer does not show, at its arrival and just before
the next one; seconds of the view's processor for a second of the run and for 1,000 events; its memory, with
Now alone and with timeline and time travel beside; and bytes that a finished response leaves in memory and in
`view.past`, with the sum for 10 million.

`--pages 0,1,20` does so with as many pages, one after the other: 0 is a run without a view. What the writer
of the journal takes is printed each time: its processor for an event, and its transactions by the clock.
"""

import argparse
import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread

import msgpack
import psutil

from benchmarks.view import ROOT, made
from controller.durability.holder import lock_of
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.durability.store import Store
from controller.view.door.viewers import PAGE
from controller.view.past.replayed_core import ReplayedCore
from controller.view.shown_run import ShownRun

AGE_S = 0.8  # as controller/view/pages/main.js
TURN_S = 0.02  # between two transactions of the journal
ASKED = "/api/runs/0/now"
NUMBERS = count()
GROUP_SIZE = 16
MANY = 10_000_000  # responses that have ended
TABLES = ("events", "fingerprints", "snapshots")  # of run.db, by number of an event


class Copied:
    """A run directory that gets the journal of another one, as time goes by."""

    def __init__(self, source: Path, run: Path, until: int) -> None:
        """All up to event `until` is there at once."""
        run.mkdir()
        Store(run / "run.db").close()  # which makes the tables
        self._db = sqlite3.connect(run / "run.db", isolation_level=None, check_same_thread=False)
        self._db.execute("ATTACH ? AS source", (str(source / "run.db"),))
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("INSERT INTO facts SELECT * FROM source.facts")
            for table in TABLES:
                self._copy(table, -1, until)
        lock_of(run).write_text(str(os.getpid()))  # so that it goes on
        self.number, self.written = until, dict[int, float]()
        self.used_s, self.took_s = 0.0, list[float]()  # of the processor; by the clock, of each transaction

    def write_on(self, until: int) -> None:
        """The events up to this one, now."""
        began, used = time.monotonic(), time.thread_time()
        self._db.execute("BEGIN")
        for table in ("events", "fingerprints"):
            self._copy(table, self.number, until)
        self._db.execute("COMMIT")
        now = time.monotonic()
        self.used_s += time.thread_time() - used
        self.took_s.append(now - began)
        self.written |= dict.fromkeys(range(self.number + 1, until + 1), now)
        self.number = until

    def _copy(self, table: str, after: int, until: int) -> None:
        key = "first_seq" if table == "fingerprints" else "seq"
        self._db.execute(
            f"INSERT INTO {table} SELECT * FROM source.{table} WHERE {key} > ? AND {key} <= ?", (after, until)
        )


class Page:
    """What a page that follows sees of a view."""

    def __init__(self, base: str, token: str) -> None:
        self._base, self._token = base, token
        self.name = f"page{next(NUMBERS)}"

    def another(self) -> "Page":
        """Somebody else who looks at the same view."""
        return Page(self._base, self._token)

    def ask(self, path: str) -> tuple[int, dict]:
        """Status and answer."""
        words = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "gzip", PAGE: self.name}
        with urllib.request.urlopen(urllib.request.Request(self._base + path, headers=words)) as answer:
            data = answer.read()
            if answer.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            return answer.status, json.loads(data)

    def until_read(self, path: str) -> dict:
        """The answer, once the journal is read for it."""
        while True:
            status, found = self.ask(path)
            if status == 200:
                return found
            time.sleep(0.03)


@contextmanager
def viewed(run: Path) -> Iterator[tuple[Page, psutil.Process]]:
    """A view of this run: a page of it, and its process."""
    words = [sys.executable, "launch.py", "view", str(run), "--read-only"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as view:
        assert view.stdout is not None
        base = view.stdout.readline().split()[1].partition("/?")[0]
        yield Page(base, (run / "view.token").read_text()), psutil.Process(view.pid)
        view.terminate()


def due_times(replayed: ReplayedCore, until: int, rate: float) -> list[float]:
    """When a controller writes what follows: at this rate, and never before it has decided."""
    found, free_s, spent_s, begin = list[float](), 0.0, 0.0, replayed.here.number
    used = time.thread_time()
    for place, _ in enumerate(turns(replayed.recording, replayed.here.core, begin, until)):
        found.append(max(place / rate, free_s))
        took, used = time.thread_time() - used, time.thread_time()
        free_s, spent_s = found[-1] + took, spent_s + took
    print(f"{len(found):,} events in {found[-1]:.1f} s; the core decides for {spent_s:.1f} s", flush=True)
    return found


def write(copied: Copied, due_s: list[float], is_over: Event) -> None:
    """Let the journal grow by these events, each when it is due."""
    began, first = time.monotonic(), copied.number
    until = first + len(due_s)
    while copied.number < until:
        due = first + bisect_right(due_s, time.monotonic() - began)
        if due > copied.number:
            copied.write_on(due)
        time.sleep(TURN_S)
    is_over.set()


def age(copied: Copied, number: int, now: float) -> float:
    """Seconds since the first event behind this one was written."""
    return max(0.0, now - copied.written.get(number + 1, now))


def follow(page: Page, copied: Copied, is_over: Event) -> tuple[list[float], list[float]]:
    """Ages at the arrival of each answer, and just before the next one."""
    at_first, at_last, shown = [], [], copied.number
    while not is_over.is_set():
        asked = time.monotonic()
        found = page.until_read(ASKED)
        now = time.monotonic()
        at_last.append(age(copied, shown, now))
        shown = found["number"]
        at_first.append(age(copied, shown, now))
        is_over.wait(max(now - asked, AGE_S - 2 * (now - asked)))
    return at_first[1:], at_last[1:]


def p95(values: list[float]) -> float:
    """Of these values."""
    return quantiles(values, n=20)[18] if len(values) > 1 else values[0]


def used_s(process: psutil.Process) -> float:
    """Seconds of the processor."""
    times = process.cpu_times()
    return times.user + times.system


def memory_mb(process: psutil.Process) -> float:
    """Resident, in MB of 10^6 bytes."""
    return process.memory_info().rss / 1e6


def lag(source: Path, folder: Path, pages: int, begin: int, due_s: list[float]) -> None:
    """So many pages behind a run that goes on, and what writer and view take meanwhile."""
    copied, is_over = Copied(source, folder / f"live{pages}", begin), Event()
    writer = Thread(target=write, args=(copied, due_s, is_over))
    print(f"{pages} pages:", flush=True)
    if not pages:
        writer.start()
        writer.join()
        writing(copied, begin)
        return
    with viewed(folder / f"live{pages}") as (page, process):
        looked_at(copied, writer, is_over, page, process, pages)
        writing(copied, begin)
        if pages == 1:
            after_all(page, process, begin + len(due_s))


def looked_at(
    copied: Copied, writer: Thread, is_over: Event, page: Page, process: psutil.Process, pages: int
) -> None:
    """Print how far behind the pages were while it was written, and what the view took."""
    first, begin = time.monotonic(), copied.number
    used = used_s(process)
    page.until_read(ASKED)
    print(f"  first page: {time.monotonic() - first:.1f} s, {used_s(process) - used:.1f} s of processor")
    began, used = time.monotonic(), used_s(process)
    writer.start()
    with ThreadPoolExecutor(pages) as pool:
        followers = [page, *(page.another() for _ in range(pages - 1))]
        looking = [pool.submit(follow, one, copied, is_over) for one in followers]
        writer.join()
        ages = [one.result() for one in looking]
    spent, took = used_s(process) - used, time.monotonic() - began
    at_first, at_last = ([age for one in ages for age in one[place]] for place in (0, 1))
    behind = ", ".join(
        f"{name} {p95(found):.2f} s"
        for name, found in (("at arrival", at_first), ("before the next", at_last))
    )
    print(
        f"  {len(at_first)} looks in {took:.0f} s at {(copied.number - begin) / took:,.0f} events a second: "
        f"p95 of the age of what is not shown {behind} (limit 1 s)"
    )
    print(
        f"  the view: {spent / took:.2f} s of processor each second (limit 1), "
        f"{1e6 * spent / (copied.number - begin):.0f} us an event, {memory_mb(process):.0f} MB with Now alone"
    )


def writing(copied: Copied, begin: int) -> None:
    """Print what the journal's writer took."""
    took = sorted(copied.took_s)
    print(
        f"  the journal's writer: {1e6 * copied.used_s / (copied.number - begin):.1f} us of processor an "
        f"event; a transaction by the clock: median {1e3 * median(took):.1f} ms, p99 "
        f"{1e3 * quantiles(took, n=100)[98]:.1f} ms, longest {1e3 * took[-1]:.1f} ms",
        flush=True,
    )


def after_all(page: Page, process: psutil.Process, last: int) -> None:
    """The view's memory when timeline and time travel were asked for, too."""
    while (found := page.until_read("/api/runs/0/timeline"))["passed"] < found["of"]:
        time.sleep(1.0)
    for number in (last // 2, last // 3, last - 100):
        page.until_read(f"/api/runs/0/now?event={number}")
    now = page.until_read("/api/runs/0/now")
    running = sum(one["running"] for one in now["workers"]) + now["queued"]
    print(
        f"  {memory_mb(process):.0f} MB with timeline and time travel, {running:,} responses in hand "
        "(limit 1,000 MB)"
    )


def growth(path: Path) -> None:
    """What a finished response leaves in the pass over the history."""
    run = ShownRun(path)
    run.timeline(None, None, "")
    run.join()
    with run.replayed() as replayed:
        background = run._look().background
        assert background is not None
        config, room = replayed.recording.config(), replayed.keyframes.size
    timeline = len(msgpack.packb(background.timeline.as_plain()))
    ended = background._core.state.steps * config.trainer.batch_groups * GROUP_SIZE
    each = timeline / ended
    print(
        f"{ended:,} finished responses leave {timeline / 1e6:.1f} MB, {each:.0f} bytes each (limit 200), "
        f"beside {room / 1e6:.0f} MB of keyframes, which have {config.view.keyframes_mb} MB at most; "
        f"10 million: {each * MANY / 1e6 + config.view.keyframes_mb:.0f} MB"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which run is followed, and how fast it goes on."""
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--in-hand", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--run", default="")
    parser.add_argument("--rate", type=float, default=1_000.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--share", type=float, default=0.5, help="of the journal that is there at first")


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--pages", default="1", help="how many, or several such numbers: 0,1,20")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
        each = words.in_hand / words.instances
        path = Path(words.run) if words.run else made(Path(folder), words.instances, words.steps, each)
        replayed = ReplayedCore(Recording(path), keyframes_bytes=1, goes_back=False)
        begin = replayed.at(int(words.share * replayed.last)).number
        due_s = due_times(replayed, min(replayed.last, begin + int(words.rate * words.seconds)), words.rate)
        for pages in map(int, words.pages.split(",")):
            lag(path, Path(folder), pages, begin, due_s)
        growth(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
