"""Pictures of the pages of the view: `python -m docs.make_screenshots RUN [RUN ...] -o DIR`.

At 1280x800 and 1920x1080, light and dark, of a view that it starts itself; not of Controls, which is empty
where a run is over. Needs playwright (pip install playwright) and a Chromium of the system. Ends with 1 if a
page is wider than its window, says something is wrong, or logs an error.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "now",
    "ledger",
    "timeline",
    "why",
    "group?group=3",
    "samples",
    "metrics",
    "whatif",
    "compare",
)
SIZES = ((1280, 800), (1920, 1080))
SCHEMES = ("light", "dark")
WAIT_MS = 300_000


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("-o", "--output", default="screenshots", type=Path)
    parser.add_argument("--only", default="", help="part of a page's name")
    words = parser.parse_args()
    words.output.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "launch.py",
        "view",
        *(str(Path(run).resolve()) for run in words.runs),
        "--read-only",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as view:
        try:
            assert view.stdout is not None
            base = view.stdout.readline().split()[1].partition("?")[0]
            token = (Path(words.runs[0]) / "view.token").read_text()
            pages = [page for page in PAGES if words.only in page]
            return taken(f"{base}?token={token}", pages, words.output)
        finally:
            view.terminate()


def taken(link: str, pages: list[str], output: Path) -> int:
    """1 if something is wrong with a page."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            wrong.append(message.text)

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        for width, height in SIZES:
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.on("console", note)
                page.goto(link)
                page.wait_for_selector("#page[data-page=now] section", timeout=WAIT_MS)
                for name in pages:
                    path, _, more = name.partition("?")
                    last = page.get_attribute("#slider", "max") or "0"
                    moment = last if path in ("metrics", "whatif", "compare") else str(int(last) * 3 // 5)
                    at = "" if moment == last else f"&at={moment}"
                    page.evaluate(f"location.hash = '#{path}?run=0{at}&{more}'")
                    page.wait_for_selector(f"nav a[aria-current][href^='#{path}?']", timeout=WAIT_MS)
                    page.wait_for_selector(f"#page[data-page='{path}'] section", timeout=WAIT_MS)
                    if path in ("timeline", "ledger", "metrics"):
                        reading = page.locator("#page", has_text="reading the history")
                        reading.wait_for(state="detached", timeout=WAIT_MS)
                    page.wait_for_load_state("networkidle", timeout=WAIT_MS)
                    page.locator("#where", has_text=f"event {int(moment):,} of").wait_for(timeout=WAIT_MS)
                    page.wait_for_selector("#page:not(.busy)", timeout=WAIT_MS)
                    if path == "why":  # of an event that gave commands
                        page.keyboard.press("]")
                        idle = page.locator("#page", has_text="It gave no command.")
                        idle.wait_for(state="detached", timeout=WAIT_MS)
                    file = output / f"{path}_{width}_{scheme}.png"
                    page.screenshot(path=str(file), full_page=False)
                    trouble = page.inner_text("#trouble") if page.is_visible("#trouble") else ""
                    wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
                    wrong += [f"{file.name}: {trouble}"] * bool(trouble) + [f"{file.name} is too wide"] * wide
                    print(file, flush=True)
                page.close()
        browser.close()
    for text in wrong:
        print(f"wrong: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
