"""What the view costs a run, a machine and a browser: `python -m benchmarks.view [--instances 1024]`.

Simulates a run on so many instances (or takes `--run RUN`) and prints, against the limits of docs/view.md:
what the controller spends on saying what it does, and its longest pause by that; the first page; size and
time of every page's answer, and what a page that follows a run takes each second; the timeline of all lanes,
in Chromium too where there is one; random jumps and steps; the weight of the pages; with `--link`, seconds
from the start of a run to its link; and with `--extra`, what the extra `web` installs. Times are of the
processor where load would show in them.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.time_travel import spread, timed
from controller.config.models import Config
from controller.core.core import Core
from controller.host.collector import rare_collections
from controller.host.status_file import StatusFile, pause_after
from controller.view.over_time import ages, starts
from controller.view.shown_run import ShownRun
from controller.view.site import PAGES
from tests.support.extra import added_by
from tests.support.recorded_run import record

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = Path("/usr/bin/chromium")
MOST_BYTES_PER_S = 30_000  # to one browser that follows 1,024 instances
MOST_PAGE_BYTES = 250_000
LIMIT_MS = 600_000  # ends what hangs in Chromium
AGAIN = 5  # times that the timeline is opened in Chromium
MOVES = ("zoom in", "later", "earlier", "zoom out")
PICTURE = """(button) => new Promise((done) => {  // to what is seen at once, and to the whole
  const before = document.querySelector("canvas.timeline"), began = performance.now();
  const twice = (act) => requestAnimationFrame(() => requestAnimationFrame(act));
  let first = null;
  performance.clearResourceTimings();
  document.querySelector(button).click();
  if (before) twice(() => { first = performance.now() - began; });
  const look = () => {
    const canvas = document.querySelector("canvas.timeline");
    if (canvas === null || canvas === before) return requestAnimationFrame(look);
    twice(() => {
      const whole = performance.now() - began;
      const asked = performance.getEntriesByType("resource").filter((one) => one.name.includes("/timeline"));
      done({ first: first ?? whole, whole, answer: asked.at(-1)?.duration ?? 0 });
    });
  };
  look();
})"""
FOLLOWED = {"runs": 0.125, "now": 1.25}  # how often the page Now asks in a second at most, as main.js


def made(folder: Path, instances: int, steps: int, in_hand: float = 64.0) -> Path:
    """A simulated run with about so many responses in hand for every instance."""
    config = Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {
                "instances": instances,
                "group_size": 16,
                "max_prompt_tokens": 40,
                "max_response_tokens": 144,
            },
            "reward": {"workers": 16},
            "trainer": {"batch_groups": int(in_hand * instances / 32)},
            "staleness": {"max_staleness": 2, "in_flight_batches": 2.0},
            "simulation": {"pull_s": 0.05, "attach_s": 0.1, "train_token_s": 1e-6},
        }
    )
    record(folder / "run", config, snapshot_every=20_000)
    return folder / "run"


class Written:
    """A run directory that takes status.json as the disk would."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "status.json"
        self.logs = folder / "logs"
        self.size = 0

    def write_status(self, text: str) -> None:
        """All of it."""
        self.size = len(text)
        self._file.write_text(text)


def of_the_controller(core: Core, config: Config) -> None:
    """What a look at the run takes of the controller's loop, once a second, whoever looks at pages."""
    with tempfile.TemporaryDirectory() as folder:
        written = Written(Path(folder))
        status = StatusFile(written, config, on_complaint=lambda text: None)  # type: ignore[arg-type]
        with rare_collections():  # as a run has them
            looks = [look_of(status, core, 20.0 * at) for at in range(40)]
    used, slices = sorted(sum(look) for look in looks), [slice_s for look in looks for slice_s in look]
    running = sum(len(one.running) for one in core.state.registry.instances())
    pause_s = pause_after(median(used))
    share, p99 = 100 * median(used) / pause_s, quantiles(slices, n=100)[98]
    print(
        f"status.json: {written.size / 1e3:.0f} kB of {running:,} responses that run; every {pause_s:.1f} s "
        f"{1e3 * median(used):.1f} ms of the loop, {share:.2f} % (limit 1 %), in {len(looks[-1])} slices; "
        f"median slice {1e3 * median(slices):.1f} ms, p99 {1e3 * p99:.1f} ms, longest of "
        f"{len(slices)} {1e3 * max(slices):.1f} ms (limit 5 ms)"
    )


def look_of(status: StatusFile, core: Core, now: float) -> list[float]:
    """Seconds of the processor that each slice of one look takes."""
    found: list[float] = []
    pause_s = 0.0
    while not pause_s:  # 0: the look is not at its end
        began = time.thread_time()
        pause_s = status.watch(core.snapshot_in_slices, now)
        found.append(time.thread_time() - began)
    return found


def answers(run: ShownRun) -> None:
    """Sizes and times of what pages ask."""
    asks: dict[str, Callable[[], object]] = {
        "runs": run.facts,
        "moment": lambda: run.moment({}),
        "now": lambda: run.now({}, find=""),
        "ledger": lambda: run.ledger({}),
        "starts": lambda: starts(run, {}),
        "ages": lambda: ages(run),
        "timeline": lambda: run.timeline(None, None, ""),
        "metrics": run.metrics,
    }
    sizes, used = {}, {}
    for name, ask in asks.items():
        times = [timed(ask) for _ in range(10)]
        text = json.dumps(ask()).encode()
        packed, packing = gzip.compress(text, 1), timed(lambda text=text: gzip.compress(text, 1))[1]
        sizes[name], used[name] = len(packed), median(one for _, one in times) + packing
        print(
            f"  {name:<10}{len(text) / 1e3:9.1f} kB, packed {len(packed) / 1e3:7.1f} kB; "
            f"{1e3 * used[name]:6.1f} ms of processor"
        )
    each_s = sum(times * sizes[name] for name, times in FOLLOWED.items())
    spent = sum(times * used[name] for name, times in FOLLOWED.items())
    print(
        f"a page that follows: {each_s / 1e3:.1f} kB/s (limit {MOST_BYTES_PER_S / 1e3:.0f}), "
        f"{1e3 * spent:.1f} ms of the view's processor each second"
    )


def in_chromium(run: Path) -> None:
    """The first page and the timeline of all lanes in a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("no playwright here: the browser's part is left out")
        return
    if not CHROMIUM.exists():
        print(f"no {CHROMIUM} here: the browser's part is left out")
        return
    words = [sys.executable, "launch.py", "view", str(run), "--read-only"]
    with (
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as view,
        sync_playwright() as driver,
    ):
        assert view.stdout is not None
        link = view.stdout.readline().split()[1].partition("?")[0]
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        began = time.perf_counter()
        page.goto(f"{link}?token={(run / 'view.token').read_text()}")
        page.wait_for_selector("#page section", timeout=LIMIT_MS)
        print(
            f"first page in Chromium: {time.perf_counter() - began:.2f} s by the clock (limit 2 s)",
            flush=True,
        )
        page.wait_for_selector("#page[data-page]", timeout=LIMIT_MS)
        read_s = time.perf_counter() - began
        print(f"the journal read to its end for it: {read_s:.2f} s by the clock", flush=True)
        timeline_in_chromium(page)
        browser.close()
        view.terminate()


def timeline_in_chromium(page: Any) -> None:
    """All lanes drawn, zoomed and moved, from the click to the picture."""
    from playwright.sync_api import expect

    page.click("nav a:has-text('Timeline')")
    page.wait_for_selector("canvas.timeline", timeout=LIMIT_MS)
    expect(page.locator("#page")).not_to_contain_text("reading the history", timeout=LIMIT_MS)
    drawn, moved = [], []
    for _ in range(AGAIN):
        page.click("nav a:has-text('Now')")
        page.wait_for_selector("canvas.timeline", state="detached")
        drawn.append(page.evaluate(PICTURE, "nav a[href^='#timeline']"))
        moved += [page.evaluate(PICTURE, f"button[aria-label='{name}']") for name in MOVES]
    count = page.locator("#page .row span").first.inner_text()
    for name, times, limit in ((f"the timeline ({count})", drawn, 1.0), ("a zoom or a move", moved, 0.1)):
        for what in ("first", "whole"):
            seconds = sorted(one[what] / 1e3 for one in times)
            print(
                f"{name} in Chromium, {what} picture: median {median(seconds):.3f} s, "
                f"worst {seconds[-1]:.3f} s by the clock (limit {limit} s)"
            )
        answers = [one["answer"] / 1e3 for one in times]
        print(f"  of which the view's answer took {median(answers):.3f} s in the median", flush=True)


def link_of_a_run(config: str) -> None:
    """Seconds from the start of the command to its first line, and to its link."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-u", "launch.py", config, f"run.dir={folder}", "run.steps=1"]
        began = time.perf_counter()
        with subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            assert run.stdout is not None
            first_s = None
            for line in run.stdout:
                first_s = first_s or time.perf_counter() - began
                if line.startswith("View: "):
                    link_s = time.perf_counter() - began
                    later_s = link_s - first_s
                    print(f"the first line after {first_s:.2f} s, the link {later_s:.2f} s later (limit 1 s)")
                    break
            run.terminate()


def extra() -> None:
    """What `pip install staleflow[web]` brings that the base has not."""
    added = added_by("web")
    told = ", ".join(f"{name} {size / 1e3:.0f} kB" for name, size in added.items())
    print(f"the extra web: {told}; {sum(added.values()) / 1e6:.1f} MB without bytecode (limit 3 MB)")


def jumps(run: ShownRun, times: int) -> None:
    """Random moments, and steps from there."""
    dice, facts = random.Random(1), run.facts()
    numbers = [dice.randint(facts["first"], facts["last"]) for _ in range(times)]
    spread("random jumps (the page Now)", [timed(lambda n=n: run.now({"event": str(n)})) for n in numbers])
    steps = []
    for number in numbers[:10]:
        run.now({"event": str(number)})
        steps += [timed(lambda n=number - i: run.moment({"event": str(n)})) for i in range(1, 4)]
        steps += [timed(lambda n=number - 3 + i: run.moment({"event": str(n)})) for i in range(1, 4)]
    spread("one event back or forward", steps)


def measure(path: Path, times: int) -> None:
    """All but the link."""
    run = ShownRun(path)
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    spread("the page Now, first", [timed(lambda: run.now({}))])
    spread("the same, once more", [timed(lambda: ShownRun(path).now({})) for _ in range(3)])
    facts = run.facts()
    print(f"{facts['last']:,} events, {facts['until_s']:,.1f} s of the run")
    with run.replayed() as replayed:
        core = replayed.at(facts["last"] // 2).core
        of_the_controller(core, replayed.recording.config())

    def passed() -> None:
        run.timeline(None, None, "")
        run.join()

    used = time.process_time()
    passed()
    used = time.process_time() - used
    print(
        f"the pass over the history: {used:.1f} s of processor, "
        f"{100 * used / facts['until_s']:.1f} % of the run's time"
    )
    spread("the timeline of all lanes", [timed(lambda: run.timeline(None, None, "")) for _ in range(10)])
    answers(run)
    jumps(run, times)
    weight = sum(
        file.stat().st_size for file in PAGES.rglob("*") if file.suffix in (".js", ".css", ".html", ".svg")
    )
    print(f"all pages weigh {weight / 1e3:.0f} kB (limit {MOST_PAGE_BYTES / 1e3:.0f})")


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--run", default="")
    parser.add_argument("--browser", action="store_true", help="pages in Chromium alone")
    parser.add_argument("--link", default="", metavar="CONFIG", help="start this run for its link alone")
    parser.add_argument("--extra", action="store_true", help="what the extra web installs, alone")
    words = parser.parse_args()
    if words.link or words.extra:
        link_of_a_run(words.link) if words.link else extra()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(words.run) if words.run else made(Path(folder), words.instances, words.steps)
        if not words.browser:
            measure(path, words.times)
        in_chromium(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
