"""The view's pages in a real browser: two recorded runs, a page that notes what goes wrong, and hostile text.

Needs playwright (`pip install playwright`) and a Chromium of the system; who imports this is skipped in a
sentence without.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controller.config.sections.staleness import StalenessSettings
from controller.durability.sample_records import _checksum
from tests.support.kept_samples import add_samples, kept, response
from tests.support.shown_run import CONFIG, recorded

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT_MS = 100_000  # ends what hangs
HOSTILE = '<img src=x onerror="document.title=`owned`"><script>document.title="owned"</script>'
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"
)


def with_hostile_sample(run: Path) -> Path:
    """A kept sample of step 2, group 1, whose every token is a tag; and the tokenizer that says so."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    db = sqlite3.connect(run / "run.db")
    path = json.loads(db.execute("SELECT value FROM facts WHERE name = 'config'").fetchone()[0])["model"][
        "path"
    ]
    folder = run / path
    folder.mkdir(parents=True, exist_ok=True)
    Tokenizer(WordLevel({HOSTILE: 0, "word": 1}, unk_token="word")).save(str(folder / "tokenizer.json"))
    item = {
        "group": 1,
        "member": 0,
        "reward": 1.0,
        "outcome": 0.5,
        "ending": "stop",
        "segments": [[1, 0, 1], [2, 1, 1]],
    }
    facts = json.dumps({"why": "oldest", "parts": {}, "items": [item]})
    tokens, logprobs = np.array([0, 1], "<i4").tobytes(), np.array([-0.1, -3], "<f4").tobytes()
    trained, weights = np.array([-3.1, -2], "<f4").tobytes(), np.array([0, 1.1], "<f4").tobytes()
    fields = (facts, b"{}", np.array([0], "<i4").tobytes(), tokens, logprobs, trained, weights)
    with db:
        db.execute(
            "INSERT INTO samples VALUES (2, 1, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
            (*fields, _checksum(2, 1, *fields)),
        )
    db.close()
    return run


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    run = with_hostile_sample(recorded(folder / "run"))
    add_samples(run, [
        kept(1, 5, [response(0, [1] * 9, reward=0.25, ending="length"), response(1, [1, 0], reward=1.0)],
             prompt=[0]),
    ])  # fmt: skip
    held_out = {
        "policy_version": 2,
        "reward/mean": 0.5,
        "sources": {"a": {"pass@1": 0.5}, "b": {"pass@1": 1}},
    }
    (run / "evaluations.jsonl").write_text(f"{json.dumps(held_out)}\n")
    other = recorded(
        folder / "other", CONFIG.model_copy(update={"staleness": StalenessSettings(max_staleness=2)})
    )
    with viewed(run, other) as found:
        yield found


@contextmanager
def viewed(*runs):
    """Address and token of a view of these runs."""
    words = [sys.executable, "launch.py", "view", *map(str, runs)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("View: http://127.0.0.1:"), line
            base = line.split()[1].partition("?")[0]
            yield base, (runs[0] / "view.token").read_text()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser, link):
    """The page Now, of a browser that notes what goes wrong and whom it asks."""
    base, token = link
    found = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong, asked = [], []
    found.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda request: asked.append(request.url))
    found.set_default_timeout(LIMIT_MS)
    found.goto(f"{base}?token={token}")
    found.wait_for_selector("#page[data-page] section")  # and the journal is read
    yield found
    assert not wrong
    assert all(url.startswith(base) for url in asked)
    found.close()


def open_tab(page, name):
    page.click(f"nav a:has-text('{name}')")
    page.wait_for_selector(f"nav a[aria-current]:has-text('{name}')")


def wait_for(page, text):
    page.locator("#page", has_text=text).wait_for()


def pixels_of(page, canvas):
    """Of a canvas, once something is drawn on it."""
    pixels = "view.getContext('2d').getImageData(0, 0, view.width, view.height).data"
    view = page.wait_for_selector(canvas)
    page.wait_for_function(f"(view) => {pixels}.some((one) => one)", arg=view)
    return view.evaluate(f"(view) => Array.from({pixels}).join()")
