"""What the view costs a real run: `python -m benchmarks.view_cost [CONFIG] [--steps 140] [--window 12]`.

Starts the run with its view and asks nothing of it during the first quarter; then, in turn, a page follows
the newest event for a window, as a browser does that stands on Now, and nobody asks during the next. Windows
are as short as it takes for `--pairs` of both kinds. Before each with a page the view reads what has happened
since the last one; that is printed apart, as a page that stays open has no such gap. Prints seconds of the
processor of the controller, of its workers and of the view, from /proc, in both kinds of windows: where all
cores are busy, what the view takes is what the run lacks. Tokens per second are beside them, as medians of
neighbours, and are as noisy as the machine. The run is told to end when all was measured, and its folder is
removed when it has.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev

import psutil

ROOT = Path(__file__).resolve().parents[1]
AGE_S = 0.8  # as controller/view/pages/main.js
NOW, LIST, LIST_ROUNDS = "/api/runs/0/now", "/api/runs", 10
FIRST_STEPS = 0.25  # of the run: nobody has opened a page yet
LAST_STEPS = 6  # which are not measured: nothing new starts in them
LEAST_WINDOW_S = 3.0  # a page asks four times in it
READING_S = 0.03  # until the next ask of one who waits for the journal to be read
END_S = 120.0  # for the run to save and end


@dataclass
class Window:
    """Some seconds of the run."""

    has_page: bool
    seconds: float
    used_s: dict[str, float] = field(default_factory=dict)  # of the processor, by what it was used for
    tokens: int = 0
    events: int = 0
    looks: int = 0


class Looker:
    """A run that was started, and what it has used."""

    def __init__(self, run: Path, process: subprocess.Popen[bytes]) -> None:
        self.run, self.process = run, process
        self._gone: dict[str, float] = {}  # seconds of processes that have ended, as far as they were seen
        self._seen: dict[int, tuple[str, float]] = {}

    def used_s(self) -> dict[str, float]:
        """Seconds of the processor since the beginning: of the controller, the view and the workers."""
        found: dict[int, tuple[str, float]] = {}
        for one in [(top := psutil.Process(self.process.pid)), *top.children(recursive=True)]:
            try:
                kind = "controller" if one.pid == top.pid else _kind(one.cmdline())
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            found[one.pid] = kind, times.user + times.system
        for pid, (kind, used) in self._seen.items():
            if pid not in found:
                self._gone[kind] = self._gone.get(kind, 0.0) + used
        self._seen = found
        total = dict(self._gone)
        for kind, used in found.values():
            total[kind] = total.get(kind, 0.0) + used
        return total

    def status(self) -> dict[str, object]:
        """What the run says of itself; {} before it does."""
        try:
            return json.loads((self.run / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def steps(self) -> int:
        """Lines of metrics.jsonl."""
        file = self.run / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def tokens(self) -> int:
        """Generated so far, as status.json says."""
        tokens = self.status().get("tokens")
        return tokens["generated"] if isinstance(tokens, dict) else 0

    def events(self) -> int:
        """The newest of the journal; 0 before there is one."""
        try:
            with closing(sqlite3.connect(f"file:{self.run / 'run.db'}?mode=ro", uri=True)) as db:
                return db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
        except sqlite3.Error:
            return 0

    def goes_on(self, steps: int) -> bool:
        """Whether so many steps are not made yet. Raises: RuntimeError if the run has ended before."""
        if self.process.poll() is not None:
            raise RuntimeError(f"The run has ended with exit code {self.process.returncode}, too early.")
        return self.steps() < steps


class Page:
    """What follows the newest event, as a browser does."""

    def __init__(self, run: Path) -> None:
        memory = json.loads((run.parent / f".{run.name}.view").read_text())
        self._address = f"http://127.0.0.1:{memory['port']}"
        self._headers = {"Authorization": f"Bearer {memory['token']}", "Accept-Encoding": "gzip"}

    def look(self, path: str = NOW) -> int:
        """Ask once; the status of the answer."""
        asked = urllib.request.Request(self._address + path, headers=self._headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()
            return answer.status

    def catch_up(self) -> None:
        """Ask until the journal is read to its end."""
        while self.look() != 200:
            time.sleep(READING_S)


def _kind(words: list[str]) -> str:
    return "view" if any("doorkeeper" in word or "resident" in word for word in words) else "workers"


def watch(looker: Looker, seconds: float, page: Page | None) -> Window:
    """Let it go on for so long, with a page that follows it or without."""
    before, tokens, events = looker.used_s(), looker.tokens(), looker.events()
    began, looks = time.monotonic(), 0
    while (left := began + seconds - time.monotonic()) > 0:
        if page is None:
            time.sleep(left)
            continue
        asked = time.monotonic()
        page.look()
        if looks % LIST_ROUNDS == 0:
            page.look(LIST)
        looks += 1
        took = time.monotonic() - asked
        time.sleep(max(took, AGE_S - 2 * took))
    after = looker.used_s()
    used = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    tokens, events = looker.tokens() - tokens, looker.events() - events
    return Window(page is not None, time.monotonic() - began, used, tokens, events, looks)


def caught_up(looker: Looker, page: Page) -> Window:
    """The page is opened again, after some time without."""
    before, began = looker.used_s(), time.monotonic()
    page.catch_up()
    after = looker.used_s()
    used = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    return Window(True, time.monotonic() - began, used)


def before_a_page(looker: Looker, steps: int) -> float:
    """Measure while no page was ever opened; seconds of a train step."""
    while looker.goes_on(2):
        time.sleep(0.2)
    first, began = looker.steps(), time.monotonic()
    windows = []
    while looker.goes_on(max(5, int(FIRST_STEPS * steps))):
        windows.append(watch(looker, LEAST_WINDOW_S, None))
    print_rows("before any page was opened", windows)
    return (time.monotonic() - began) / (looker.steps() - first)


def alternate(looker: Looker, steps: int, pairs: int, most_s: float) -> list[Window]:
    """Windows without and with a page in turn, the last one without.

    Raises: RuntimeError if what is left of the run has no room for them.
    """
    left_s = before_a_page(looker, steps) * (steps - LAST_STEPS - looker.steps())
    seconds = min(most_s, 0.8 * left_s / (2 * pairs + 1))  # steps grow longer, and there are gaps
    if seconds < LEAST_WINDOW_S:
        raise RuntimeError(
            f"{left_s:.0f} s are left of the run, and {pairs} pairs of windows need "
            f"{(2 * pairs + 1) * LEAST_WINDOW_S / 0.8:.0f}. Give more --steps, or fewer --pairs."
        )
    page = Page(looker.run)
    print_look("the first look, all imports and the journal so far", caught_up(looker, page))
    windows, gaps = [watch(looker, seconds, None)], []
    for _ in range(pairs):
        if not looker.goes_on(steps - LAST_STEPS):
            break
        gaps.append(caught_up(looker, page))
        windows.append(watch(looker, seconds, page))
        windows.append(watch(looker, seconds, None))
    print_look(f"a look after {seconds:.0f} s without one (mean of {len(gaps)})", *gaps)
    return windows


def print_look(name: str, *windows: Window) -> None:
    """Seconds that it took until the page was there."""
    if windows:
        used, took = (mean(one.used_s.get("view", 0.0) for one in windows), mean(w.seconds for w in windows))
        print(f"{name}: {used:.2f} s of the view's processor, {took:.2f} s by the clock", flush=True)


def print_rows(name: str, windows: list[Window]) -> None:
    """Seconds of the processor per second of the run."""
    if not windows:
        return
    seconds = sum(window.seconds for window in windows)
    used = {
        kind: sum(window.used_s.get(kind, 0.0) for window in windows)
        for kind in ("controller", "view", "workers")
    }
    total, tokens = sum(used.values()), sum(window.tokens for window in windows)
    rates = ", ".join(f"{kind} {value / seconds:.3f}" for kind, value in used.items())
    looks, events = (sum(getattr(window, what) for window in windows) for what in ("looks", "events"))
    print(
        f"{name}: {len(windows)} windows, {seconds:.0f} s, {tokens / seconds:,.0f} tokens/s, "
        f"{events / seconds:.0f} events/s, {looks} looks"
    )
    print(f"  seconds of the processor each second: {rates}")
    print(
        f"  the view is {100 * used['view'] / total:.2f} % of all; the controller takes "
        f"{1e6 * used['controller'] / max(1, tokens):.1f} s for a million tokens, and all together "
        f"{1e3 * total / max(1, events):.2f} ms for an event",
        flush=True,
    )


def paired(windows: list[Window]) -> None:
    """Each window with a page beside the mean of its neighbours without."""
    slower, dearer = [], []
    for before, window, after in zip(windows, windows[1:], windows[2:], strict=False):
        if window.has_page and min(before.tokens, window.tokens, after.tokens) > 0:
            around = mean((before.tokens / before.seconds, after.tokens / after.seconds))
            slower.append(100 * (1 - window.tokens / window.seconds / around))
            cost = [one.used_s["controller"] / one.seconds for one in (before, window, after)]
            dearer.append(100 * (cost[1] / mean((cost[0], cost[2])) - 1))
    if len(slower) > 1:
        error = stdev(slower) / len(slower) ** 0.5
        print(
            f"{len(slower)} pairs: with a page {median(slower):+.1f} % fewer tokens/s (mean "
            f"{mean(slower):+.1f} +- {error:.1f}; limit 3 %), "
            f"the controller's processor {median(dearer):+.1f} %"
        )


@contextmanager
def started(config: str, steps: int) -> Iterator[Looker]:
    """A run in a folder that is there as long as the run, which ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "launch.py", config, f"run.dir={folder}", "run.name=cost"]
        process = subprocess.Popen([*words, f"run.steps={steps}"], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            yield Looker(Path(folder) / "cost", process)
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _leave(number: int, frame: object) -> None:
    """End so that the run is ended, too."""
    raise SystemExit(128 + number)


def main() -> int:
    """1 if the run was too short to be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", nargs="?", default="examples/quickstart.yaml")
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--window", type=float, default=12.0, help="seconds at most")
    parser.add_argument("--pairs", type=int, default=6)
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    with started(words.config, words.steps) as looker:
        print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
        try:
            windows = alternate(looker, words.steps, words.pairs, words.window)
        except RuntimeError as error:
            print(error)
            return 1
        print_rows("nobody looks", [one for one in windows if not one.has_page])
        print_rows("one page follows", [one for one in windows if one.has_page])
        paired(windows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
