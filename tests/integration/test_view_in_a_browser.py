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
from tests.support.kept_samples import add_samples, kept, response
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


def test_a_page_that_is_loaded_again_and_again_is_one_of_those_that_look(page):
    names = set()
    for _ in range(3):
        names.add(page.evaluate("sessionStorage.staleflowPage"))
        page.reload()
        page.wait_for_selector("#page[data-page] section")
    assert len(names) == 1
    assert all(names)


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


def test_a_group_that_only_waits_for_a_place_is_queued(page):
    def with_queued(route):
        ledger = route.fetch().json()
        group = {"id": 7, "state": "generating", "version": 1, "done": 0.5, "finished": 1, "size": 4}
        group |= {"queued": 3, "tokens": 9, "is_blocker": False}
        ledger["columns"][0]["groups"] = [group, group | {"id": 8, "queued": 2}]
        route.fulfill(json=ledger)

    page.route("**/ledger*", with_queued)
    open_tab(page, "Ledger")
    page.wait_for_selector(".place.queued")
    assert page.locator(".place.queued").all_inner_texts() == ["7"]
    assert page.locator(".place.generating").all_inner_texts() == ["8"]
    page.unroute("**/ledger*")


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


def test_samples_are_searched_filtered_and_sorted_and_their_text_stays_text(page):
    open_tab(page, "Samples")
    rows = page.locator(".hits tbody tr")
    page.fill("input[name=text]", "OnError")
    page.press("input[name=text]", "Enter")
    playwright.expect(rows).to_have_count(3)  # its prompt has it, too
    assert HOSTILE[:20] in page.inner_text(".hits")
    page.locator("input[name=only][value=cut]").check()
    page.click("button:has-text('Find')")
    playwright.expect(rows).to_have_count(1)
    page.locator(".response.chosen .dim", has_text="ends by length").wait_for()
    page.click("button:text-is('all')")
    page.click("button:has-text('most repeated')")
    playwright.expect(rows).to_have_count(3)
    assert "83 %" in rows.first.inner_text()
    rows.last.locator("button").click()
    page.wait_for_url("**member=**")
    page.click("a:has-text('the same prompt over time')")
    playwright.expect(rows.locator("td:first-child")).to_have_text(["1", "1", "2"])
    page.fill("input[name=of_step]", "two")
    page.click("button:has-text('Find')")
    page.locator("[role=alert]", has_text="'two' is no step; expected a whole number from 0.").wait_for()
    assert page.locator("#page img, #page script").count() == 0
    assert page.title() != "owned"


def test_a_page_of_found_responses_is_taken_along_as_jsonl(page):
    open_tab(page, "Samples")
    page.click("button:has-text('longest')")
    page.wait_for_selector(".hits tbody tr")
    with page.expect_download() as download:
        page.click("button:has-text('JSONL of this page')")
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert [len(line["texts"]) for line in lines] == [9, 2, 2]


def test_what_a_group_said_is_read_beside_its_life(page):
    page.evaluate("location.hash = '#group?run=0&group=1'")
    page.wait_for_selector("svg rect")
    assert page.inner_text(".response .text").startswith(HOSTILE)
    page.click("button:has-text('probability')")
    page.wait_for_selector(".response .text span.p3")
    assert page.locator("nav a[aria-current]").inner_text() == "Group"
    assert page.locator("#page img, #page script").count() == 0


def test_metrics_are_drawn_and_found_by_name(page):
    open_tab(page, "Metrics")
    page.wait_for_selector(".plot canvas")
    page.fill("input[type=search]", "staleness")
    page.press("input[type=search]", "Enter")
    page.locator(".plot h3", has_text="tokens/generated").wait_for(state="detached")
    names = page.locator(".plot h3").all_inner_texts()
    assert names
    assert all("staleness" in name for name in names)
    page.fill("input[type=search]", "reward/mean")
    page.press("input[type=search]", "Enter")
    curves = page.locator(".plot", has=page.locator("canvas"))
    playwright.expect(curves).to_have_count(2)  # that of the evaluations, and the run's with it laid over
    page.locator(".plot h3", has_text="● held out").wait_for()
    page.fill("input[type=search]", "of b")
    page.press("input[type=search]", "Enter")
    page.locator(".plot h3", has_text="pass@1 of b").wait_for()


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


def test_lanes_are_chosen_by_shares_and_what_makes_no_sense_is_said(page):
    open_tab(page, "Timeline")
    wait_for(page, "4 workers")
    search = page.locator("input[aria-label='filter of workers']")
    search.fill("rollout-? idle<100%")
    search.press("Enter")
    wait_for(page, "2 workers")
    page.locator("canvas.timeline").hover(position={"x": 600, "y": 30})
    page.locator("output", has_text="rollout-0, ").wait_for()
    assert "tokens in a second of generating" in page.inner_text("output.dim")
    search.fill("lazy>20%")
    search.press("Enter")
    page.locator("[role=alert]", has_text="No lane is ever 'lazy'").wait_for()
    wait_for(page, "4 workers")
    assert search.input_value() == "lazy>20%"


def test_the_ledger_says_why_no_more_prompts_started(page):
    open_tab(page, "Ledger")
    why = page.locator("section", has_text="Why not more")
    playwright.expect(why.locator("[role=status]")).to_have_count(0, timeout=LIMIT_MS)
    assert "over the last 4 steps" in why.inner_text()
    assert "bound" in why.locator(".legend").inner_text()
    assert why.locator(".strip").count() == 5
    assert why.locator(".strip").first.get_attribute("aria-label").startswith("step 1: ")
    page.fill("#step", "2")
    page.press("#step", "Enter")
    playwright.expect(why.locator(".strip")).to_have_count(3)


def test_staleness_is_a_map_of_heat_and_curves_have_a_logarithmic_scale(page):
    open_tab(page, "Metrics")
    page.locator(".heats canvas").last.hover(position={"x": 200, "y": 10})
    page.locator(".heats output", has_text="tokens (").wait_for()
    told = {
        "steps": [[1, 1], [2, 2]],
        "is_cut": False,
        "trajectories": [[9, 1], [5, 5]],
        "tokens": [[0, 9], [99, 1]],
    }
    told |= {"passed": 7, "of": 9, "trouble": ""}
    page.route("**/ages", lambda route: route.fulfill(json=told))
    page.reload()
    linear = pixels_of(page, ".heats canvas[data-scale=linear]")
    page.locator("[role=status]", has_text="reading the history: 7 of 9 events").wait_for()
    told["passed"] = 9
    page.locator("[role=status]").wait_for(state="detached")
    page.select_option("select:has(option[value=log])", "log")
    assert pixels_of(page, ".heats canvas[data-scale=log]") != linear
    assert page.locator(".heats canvas").count() == 2
    page.wait_for_selector(".plot canvas")


def pixels_of(page, canvas):
    """Of a canvas, once something is drawn on it."""
    pixels = "view.getContext('2d').getImageData(0, 0, view.width, view.height).data"
    view = page.wait_for_selector(canvas)
    page.wait_for_function(f"(view) => {pixels}.some((one) => one)", arg=view)
    return view.evaluate(f"(view) => Array.from({pixels}).join()")


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
    apart = page.locator("section", has_text="Last values").locator("table")
    assert apart.locator("th").all_inner_texts() == ["", "run", "other", "to run"]
    assert apart.locator("tr", has_text="step").first.locator("td").all_inner_texts()[1:] == [
        "4",
        "4",
        "+0.0 %",
    ]
    before = page.locator(".plot").count()
    page.click("button[aria-label^='leave']")
    playwright.expect(page.locator(".plot")).to_have_count(before - 1)
    page.click("button:has-text('show them')")
    lanes = page.locator("section", has_text="Timelines")
    playwright.expect(lanes.locator("canvas")).to_have_count(2, timeout=LIMIT_MS)
    assert lanes.locator("h3").all_inner_texts() == ["run", "other"]
    assert "generating" in lanes.locator(".legend").inner_text()


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
