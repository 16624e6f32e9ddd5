"""What the view costs a real run: `python -m benchmarks.view_cost [CONFIG] [--steps 140] [--window 12]`.

Starts the run with its view and asks nothing of it during the first quarter; then, in turn, a page follows
the newest event for a window, as a browser does that stands on Now, and nobody asks during the next. Prints
seconds of the processor of the controller, of its workers and of the view, from /proc, in both kinds of
windows: where all cores are busy, what the view takes is what the run lacks. Tokens per second are beside
them, as medians of neighbours, and are as noisy as the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev

import psutil

ROOT = Path(__file__).resolve().parents[1]
FOLLOW_S = 0.5  # as controller/view/pages/main.js
ASKED = ("/api/runs", "/api/runs/0/moment", "/api/runs/0/now")
FIRST_STEPS = 0.25  # of the run: nobody has opened a page yet


@dataclass
class Window:
    """Some seconds of the run."""

    has_page: bool
    seconds: float
    used_s: dict[str, float] = field(default_factory=dict)  # of the processor, by what it was used for
    tokens: int = 0


class Looker:
    """A run that was started, and what it has used."""

    def __init__(self, run: Path, process: subprocess.Popen[str]) -> None:
        self.run, self._process = run, process
        self._gone: dict[str, float] = {}  # seconds of processes that have ended, as far as they were seen
        self._seen: dict[int, tuple[str, float]] = {}

    def used_s(self) -> dict[str, float]:
        """Seconds of the processor since the beginning: of the controller, the view and the workers."""
        found: dict[int, tuple[str, float]] = {}
        for one in [(top := psutil.Process(self._process.pid)), *top.children(recursive=True)]:
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


def _kind(words: list[str]) -> str:
    return "view" if any("doorkeeper" in word or "resident" in word for word in words) else "workers"


def watch(looker: Looker, seconds: float, page: str | None, token: str) -> Window:
    """Let it go on for so long, with a page that follows it or without."""
    before, tokens, began = looker.used_s(), looker.tokens(), time.monotonic()
    while time.monotonic() < began + seconds:
        if page is not None:
            for path in ASKED:
                ask = urllib.request.Request(page + path, headers={"Authorization": f"Bearer {token}"})
                with urllib.request.urlopen(ask, timeout=60) as answer:
                    answer.read()
        time.sleep(FOLLOW_S)
    after = looker.used_s()
    used = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    return Window(page is not None, time.monotonic() - began, used, looker.tokens() - tokens)


def alternate(looker: Looker, process: subprocess.Popen[str], steps: int, seconds: float) -> list[Window]:
    """Windows until the run is nearly over: first without a page that was ever opened, then in turn."""
    while looker.steps() < 2:
        time.sleep(0.2)
        assert process.poll() is None, "the run has ended before its second step"
    windows = []
    while looker.steps() < FIRST_STEPS * steps:
        windows.append(watch(looker, seconds, None, ""))
    print_rows("before any page was opened", windows)
    memory = json.loads((looker.run.parent / f".{looker.run.name}.view").read_text())
    page, token = f"http://127.0.0.1:{memory['port']}", memory["token"]
    watch(looker, 3.0, page, token)  # it is imported and steps to the newest event
    windows = []
    while looker.steps() < steps - 6 and process.poll() is None:
        windows.append(watch(looker, seconds, page if len(windows) % 2 else None, token))
    return windows


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
    print(f"{name}: {len(windows)} windows, {seconds:.0f} s, {tokens / seconds:,.0f} tokens/s")
    print(f"  seconds of the processor each second: {rates}")
    print(
        f"  the view is {100 * used['view'] / total:.2f} % of all; the controller takes "
        f"{1e6 * used['controller'] / max(1, tokens):.1f} s for a million tokens",
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


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", nargs="?", default="examples/quickstart.yaml")
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--window", type=float, default=12.0)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "launch.py", words.config, f"run.dir={folder}", "run.name=cost"]
        with subprocess.Popen(
            [*command, f"run.steps={words.steps}"], cwd=ROOT, stdout=subprocess.DEVNULL, text=True
        ) as run:
            looker = Looker(Path(folder) / "cost", run)
            print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
            windows = alternate(looker, run, words.steps, words.window)
            print_rows("nobody looks", [one for one in windows if not one.has_page])
            print_rows("one page follows", [one for one in windows if one.has_page])
            paired(windows)
            run.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
