"""The view's pages in a real browser: what they show, that time moves, and that hostile text stays text.

Needs playwright (`pip install playwright`) and a Chromium of the system; skipped in a sentence without.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controller.config.models import StalenessSettings
from controller.durability.sample_records import _checksum
from controller.view.one_file import one_file
from controller.view.shown_run import ShownRun
from tests.support.shown_run import CONFIG, recorded

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT_MS = 100_000  # ends what hangs
HOSTILE = '<img src=x onerror="document.title=`owned`"><script>document.title="owned"</script>'
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)")


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
        line = process.stdout.readline()
        assert line.startswith("View: http://127.0.0.1:"), line
        base = line.split()[1].partition("?")[0]
        yield base, (runs[0] / "view.token").read_text()
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


def test_a_view_that_is_told_to_end_takes_its_token_along(tmp_path):
    run = recorded(tmp_path / "run")
    with viewed(run):
        assert (run / "view.token").exists()
    assert not (run / "view.token").exists()


def open_tab(page, name):
    page.click(f"nav a:has-text('{name}')")
    page.wait_for_selector(f"nav a[aria-current]:has-text('{name}')")


def wait_for(page, text):
    page.locator("#page", has_text=text).wait_for()


def test_the_token_leaves_the_address_and_now_shows_the_end(page):
    assert "token" not in page.url
    assert "4 of 4" in page.inner_text("#page")
    assert "is over" in page.inner_text("#state")


def test_time_moves_by_slider_buttons_and_step(page):
    last = int(page.get_attribute("#slider", "max"))
    page.fill("#step", "2")
    page.press("#step", "Enter")
    wait_for(page, "2 of 4")
    at = int(page.input_value("#slider"))
    assert 0 < at < last
    page.click("#back")
    wait_for(page, "1 of 4")
    page.click("#forward")
    wait_for(page, "2 of 4")
    assert f"at={at}" in page.url
    page.click("#live")
    wait_for(page, "4 of 4")


def test_a_group_of_the_ledger_leads_to_its_life(page):
    page.evaluate(
        "location.hash = '#ledger?run=0&at=' + Math.floor(document.getElementById('slider').max / 2)"
    )
    page.wait_for_selector(".place.occupied, .place.generating, .place.scoring")
    assert page.locator(".column").count() >= 2
    page.locator("button.place").first.click()
    page.wait_for_selector("svg rect")
    assert "Story" in page.inner_text("#page")


def test_what_a_model_says_is_text_and_nothing_else(page):
    open_tab(page, "Samples")
    page.wait_for_selector(".response .text span")
    assert page.inner_text(".response .text").startswith(HOSTILE)
    assert page.locator(".response .text span.v0, .response .text span.v1").count() == 2
    assert page.locator("#page img, #page script").count() == 0
    page.click("button:has-text('probability')")
    page.wait_for_selector(".response .text span.p3")
    page.click("button:has-text('drift')")
    page.wait_for_selector(".response .text span.d0 + span.d3")
    page.click("button:has-text('weight')")
    page.wait_for_selector(".response .text span.d0 + span.d2")
    assert "drift -3, weight 0" in page.locator(".response .text span").first.get_attribute("title")
    assert page.title() != "owned"


def test_metrics_are_drawn_and_found_by_name(page):
    open_tab(page, "Metrics")
    page.wait_for_selector(".plot canvas")
    page.fill("input[type=search]", "staleness")
    page.press("input[type=search]", "Enter")
    page.locator(".plot h3", has_text="tokens/generated").wait_for(state="detached")
    names = page.locator(".plot h3").all_inner_texts()
    assert names
    assert all("staleness" in name for name in names)


def test_a_run_that_is_over_takes_no_orders(page):
    open_tab(page, "Controls")
    wait_for(page, "nobody could obey")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1920, 1280, 600])
def test_nothing_is_wider_than_the_window(browser, link, width, scheme):
    base, token = link
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(f"{base}?token={token}")
    for name in ("Now", "Ledger", "Timeline", "Why", "Samples", "Metrics", "What if", "Compare", "Controls"):
        open_tab(page, name)
        page.wait_for_selector("#page section")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            f"{name} at {width}"
        )
    page.close()


def test_the_timeline_is_drawn_zoomed_and_leads_to_a_moment(page):
    open_tab(page, "Timeline")
    page.wait_for_selector("canvas.timeline")
    page.locator("#page", has_text="Time of trainer").wait_for()
    pixels = "getContext('2d').getImageData(0, 0, view.width, view.height).data"
    assert page.locator("canvas.timeline").evaluate(f"(view) => view.{pixels}.some((one) => one)")
    page.click("button[aria-label='zoom in']")
    page.wait_for_url("**begin=**")
    page.locator("canvas.timeline").hover(position={"x": 400, "y": 30})
    assert " s" in page.inner_text("output.dim")
    page.locator("canvas.timeline").click(position={"x": 400, "y": 30})
    page.wait_for_selector("nav a[aria-current]:has-text('Now')")
    assert "at=" in page.url


def test_a_decision_is_explained_and_found_by_the_keyboard(page):
    page.evaluate("location.hash = '#why?run=0&at=40'")
    page.wait_for_selector("nav a[aria-current]:has-text('Why')")
    page.locator("body").press("]")
    page.wait_for_url(lambda url: "at=" in url and "at=40" not in url)
    wait_for(page, "commands that it gave")


def test_what_if_predicts_beside_the_run_itself(page):
    open_tab(page, "What if")
    page.fill("input[data-key='rollout.instances']", "3")
    page.click("button:has-text('Predict')")
    page.locator("#page", has_text="As overrides").wait_for(timeout=120_000)
    rows = page.locator("table tbody tr").all_inner_texts()
    assert any("rollout.instances=3" in row for row in rows)
    assert any("this run, simulated" in row for row in rows)


def test_two_runs_are_compared_by_metrics_and_settings(page):
    open_tab(page, "Compare")
    page.wait_for_selector(".plot canvas")
    assert "Settings that differ" in page.inner_text("#page")
    assert "staleness.max_staleness" in page.inner_text("#page")
    before = page.locator(".plot").count()
    page.click("button[aria-label^='leave']")
    playwright.expect(page.locator(".plot")).to_have_count(before - 1)


def test_a_run_in_one_file_shows_its_pages_and_asks_nobody(browser, tmp_path):
    run = with_hostile_sample(recorded(tmp_path / "run"))
    file = tmp_path / "run.html"
    file.write_text(one_file(ShownRun(run)))
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#page section")
    assert "4 of 4" in page.inner_text("#page")
    for name in ("Ledger", "Timeline", "Metrics", "Samples"):
        open_tab(page, name)
        assert not page.is_visible("#trouble"), name
    assert page.inner_text(".response .text").startswith(HOSTILE)
    assert page.title() != "owned"
    assert not wrong
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    page.close()


def test_a_page_that_stays_open_sees_a_killed_run_go_on(browser, tmp_path):
    run = recorded(tmp_path / "run")
    (run / "summary.json").unlink()
    with viewed(run) as (base, token):
        page = browser.new_page()
        page.goto(f"{base}?token={token}")
        state = page.locator("#state")
        playwright.expect(state).to_have_text("its controller is gone")
        (tmp_path / ".run.lock").write_text(str(os.getpid()))
        playwright.expect(state).to_have_text("goes on", timeout=LIMIT_MS)
        (run / "summary.json").write_text("{}")
        playwright.expect(state).to_have_text("is over", timeout=LIMIT_MS)
        (run / "summary.json").unlink()
        playwright.expect(state).to_have_text("goes on", timeout=LIMIT_MS)
    playwright.expect(state).to_have_text("not heard", timeout=LIMIT_MS)
    playwright.expect(page.locator("#trouble")).to_contain_text(f"launch.py view {run}")
    page.close()


def test_while_the_journal_is_read_the_page_says_how_far_and_what_the_run_says(browser, link):
    base, token = link
    page = browser.new_page()
    moments = f"{base}api/runs/0/{{moment,now,ledger}}*"  # all that need the journal
    told = {"steps": 3, "steps_wanted": 4, "waiting_for": "2 more groups", "last_step": {}}
    way = {"reading": {"number": 20_000, "last": 1_000_000}, "said": told}
    page.route(moments, lambda route: route.fulfill(status=202, json=way))
    page.goto(f"{base}?token={token}")
    for text in ("event 20,000 of 1,000,000", "3 of 4", "Waits for 2 more groups"):
        wait_for(page, text)
    assert page.get_attribute("[role=progressbar]", "aria-valuenow") == "20000"
    open_tab(page, "Metrics")  # which needs no journal
    page.wait_for_selector(".plot canvas")
    assert "reading the journal" in page.inner_text("#where")
    open_tab(page, "Ledger")
    page.wait_for_selector("[role=progressbar]")
    page.unroute(moments)
    page.wait_for_selector(".column")
    assert page.locator("[role=progressbar]").count() == 0
    assert not page.is_visible("#trouble")
    page.route(moments, lambda route: route.fulfill(status=202, json=way))
    page.evaluate("location.hash = '#ledger?run=0&at=50'")  # what stood there stays, dimmed
    page.wait_for_selector("#page.busy .column")
    page.unroute(moments)
    page.wait_for_selector("#page:not(.busy) .column")
    assert page.input_value("#slider") == "50"
    page.close()
