"""The view in a real browser: a page that stays open follows its run, and leaves what somebody does alone."""

import json
import os
import re

import pytest

from tests.support.chromium import (
    LIMIT_MS,
    browser,
    link,
    needs_chromium,
    open_tab,
    page,
    playwright,
    viewed,
    wait_for,
)
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest
from tests.support.shown_run import recorded, shorten

__all__ = ["browser", "link", "page"]  # fixtures
pytestmark = needs_chromium


@pytest.fixture
def going(tmp_path):
    """A run that goes on, in which nothing has happened."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()  # as a run does when it begins
    (tmp_path / ".run.lock").write_text(str(os.getpid()))
    config = config_of(steps=6)
    run = ScriptedRun(tmp_path / "run" / "run.db", config, honest(config, Disk()))
    yield run
    run.close()


@pytest.fixture
def begun(going, tmp_path):
    """That run, and its view."""
    with viewed(tmp_path / "run") as found:
        yield going, found


@pytest.fixture
def live(tmp_path):
    """A recorded run whose controller is this process, and its view."""
    run = recorded(tmp_path / "run")
    (run / "summary.json").unlink()
    (tmp_path / ".run.lock").write_text(str(os.getpid()))
    with viewed(run) as found:
        yield found


def opened(browser, found, name, *, width=1280):
    """A page of the view; it notes what goes wrong."""
    base, token = found
    page = browser.new_page(viewport={"width": width, "height": 600})
    page.set_default_timeout(LIMIT_MS)
    page.goto(f"{base}?token={token}#{name}")
    page.wait_for_selector("#page[data-page] section")
    return page


def go_on(run, path, steps):
    """The run finishes steps, and says so in metrics.jsonl."""
    run.run(until=lambda: run.core.state.steps >= steps)
    lines = [{"step": one, "time_s": float(one), "reward/mean": 0.125 * one} for one in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def looks(page, path, count=3):
    """So many answers of an address later."""
    for _ in range(count):
        with page.expect_response(lambda answer: path in answer.url):
            pass


def test_curves_and_samples_that_were_opened_before_the_first_step_follow_the_run(browser, begun, tmp_path):
    run, found = begun
    now = opened(browser, found, "now")
    wait_for(now, "newest version published")
    assert "v-1" not in now.inner_text("#page")
    now.close()
    metrics, samples = opened(browser, found, "metrics?find=reward/mean"), opened(browser, found, "samples")
    wait_for(metrics, "No train step is finished yet.")
    wait_for(samples, "None are kept (yet)")
    for name, role in (("r0", "rollout"), ("s", "reward"), ("t", "trainer")):
        run.attach(name, role)
    go_on(run, tmp_path / "run", 2)
    metrics.bring_to_front()
    title = metrics.locator(".plot h3", has_text="reward/mean")
    playwright.expect(title).to_contain_text("0.25")
    samples.bring_to_front()
    samples.wait_for_selector(".list button.on")
    chosen = samples.inner_text(".list button.on >> nth=0")

    metrics.bring_to_front()
    metrics.locator(".plot canvas").first.evaluate("(one) => { window.curve = one; }")
    go_on(run, tmp_path / "run", 4)  # by which the samples of step 3 are written
    playwright.expect(title).to_contain_text("0.5")
    assert metrics.evaluate("window.curve.isConnected"), "it is drawn on, not made again"
    samples.bring_to_front()
    samples.locator(".list button", has_text="step 3").wait_for()
    assert samples.inner_text(".list button.on >> nth=0") == chosen, "what is read stays"
    samples.fill("input[name=text]", "half a wo")
    samples.evaluate("document.activeElement.blur()")
    go_on(run, tmp_path / "run", 5)
    looks(samples, "/moment")
    assert samples.input_value("input[name=text]") == "half a wo"
    metrics.close()
    samples.close()


def test_the_newest_decision_is_that_of_the_newest_event(page):
    page.evaluate("location.hash = '#why?run=0&at=40'")
    page.locator("h2", has_text="Event 40").wait_for()
    page.click("#live")
    page.locator("h2", has_text=f"Event {int(page.get_attribute('#slider', 'max')):,}").wait_for()


def test_every_page_says_that_the_view_is_gone_and_keeps_what_is_written_there(browser, tmp_path):
    run = recorded(tmp_path / "run")
    (run / "summary.json").unlink()
    (tmp_path / ".run.lock").write_text(str(os.getpid()))
    with viewed(run) as found:
        pages = [opened(browser, found, name) for name in ("metrics", "controls", "now?at=50")]
        for page in pages:
            playwright.expect(page.locator("#state")).to_have_text("goes on")
        pages[1].locator("input[name=why]").first.fill("a draft")
    for page in pages:
        page.bring_to_front()
        playwright.expect(page.locator("#state")).to_have_text("not heard", timeout=LIMIT_MS)
        playwright.expect(page.locator("#trouble")).to_contain_text("The view does not answer")
    assert pages[1].locator("input[name=why]").first.input_value() == "a draft"
    for page in pages:
        page.close()


@pytest.mark.parametrize("name", ["Ledger", "Metrics", "Compare", "What if"])
def test_a_page_whose_view_has_another_token_by_now_says_what_to_do(browser, link, name):
    base, token = link
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(f"{base}?token={token}")
        wait_for(tab, "4 of 4")
        context.clear_cookies()
        open_tab(tab, name)
        tab.locator("#trouble", has_text="Open the link with its token").wait_for()


NOTES_CHARTS = """
window.charts = new Set();
let real;
Object.defineProperty(window, "uPlot", {
  get: () => real,
  set: (made) => {
    real = new Proxy(made, { construct(target, words) {
      const chart = new target(...words);
      window.charts.add(chart);
      (chart.hooks.destroy ??= []).push(() => window.charts.delete(chart));
      return chart;
    } });
  },
});
"""


ZOOM = "() => { const { min, max } = [...window.charts].at(-1).scales.x; return [min, max]; }"


def last_values(page):
    """What Compare says of each run, by metric."""
    rows = page.locator("section", has_text="Last values").locator("tbody tr").all_inner_texts()
    return {name: values for name, *values in (row.split("\t") for row in rows)}


def test_compared_runs_are_followed_and_a_zoom_stays(browser, going, tmp_path):
    for name, role in (("r0", "rollout"), ("s", "reward"), ("t", "trainer")):
        going.attach(name, role)
    with viewed(recorded(tmp_path / "other"), tmp_path / "run") as (base, token):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(LIMIT_MS)
        page.add_init_script(NOTES_CHARTS)
        page.goto(f"{base}?token={token}#compare?keys=reward/mean")
        page.wait_for_selector(".plot canvas")
        assert last_values(page)["step"] == ["4", "", ""]
        go_on(going, tmp_path / "run", 3)
        page.locator("section", has_text="Last values").locator("td", has_text="\u221225.0 %").wait_for()
        assert last_values(page)["reward/mean"][1] == "0.375"
        points = "() => [...window.charts].at(-1).data[2]"
        page.wait_for_function("() => [...window.charts].at(-1).data.length === 3")
        assert page.evaluate(points) == [0.125, 0.25, 0.375, None]

        over = page.locator(".u-over").bounding_box()
        page.mouse.move(over["x"] + 0.4 * over["width"], over["y"] + 20)
        page.mouse.down()
        page.mouse.move(over["x"] + 0.9 * over["width"], over["y"] + 20, steps=3)
        page.mouse.up()
        zoomed = page.evaluate(ZOOM)
        assert 1 < zoomed[0] < zoomed[1] < 4
        go_on(going, tmp_path / "run", 5)
        page.wait_for_function("() => [...window.charts].at(-1).data[2].at(-1) === 0.625")
        assert page.evaluate(ZOOM) == zoomed
        page.close()


@pytest.mark.parametrize("name", ["Metrics", "Compare"])
def test_no_chart_is_kept_that_no_page_shows(browser, link, name):
    base, token = link
    tab = browser.new_page(color_scheme="light")
    tab.add_init_script(NOTES_CHARTS)
    tab.goto(f"{base}?token={token}")
    open_tab(tab, name)
    tab.locator(".uplot").nth(2).wait_for()
    made = tab.evaluate("[...window.charts].length")
    tab.emulate_media(color_scheme="dark")  # each is drawn again
    tab.wait_for_function("() => window.charts.size === document.querySelectorAll('.uplot').length")
    assert made > 2
    open_tab(tab, "Now")
    tab.wait_for_function("() => window.charts.size === 0")
    tab.close()


def test_an_answer_that_comes_late_takes_nobody_away_from_where_they_went(page):
    held = []
    page.route("**/moment?step=*", lambda route: held.append(route))
    with page.expect_request("**/moment?step=2"):
        page.fill("#step", "2")
        page.press("#step", "Enter")
    open_tab(page, "Ledger")
    page.wait_for_selector(".column")
    with page.expect_response("**/moment?step=2"):
        held.pop().continue_()
    page.evaluate("fetch('/api/runs').then((answer) => answer.json())")  # and so it has come before this
    assert "at=" not in page.url
    page.unroute_all(behavior="wait")


def test_a_step_that_is_to_come_is_refused_in_words_and_the_field_goes_with_its_moment(browser, link):
    page = opened(browser, link, "now")
    page.fill("#step", "9")
    page.press("#step", "Enter")
    page.locator("#refused", has_text="The run has 4 steps, so there is no step 9").wait_for()
    page.fill("#step", "2")
    page.press("#step", "Enter")
    wait_for(page, "2 of 4")
    assert page.inner_text("#refused") == ""
    assert page.input_value("#step") == "2"
    page.click("#live")
    wait_for(page, "4 of 4")
    assert page.input_value("#step") == ""
    page.close()


def test_moments_whose_events_are_deleted_are_said_to_be(browser, tmp_path):
    run = recorded(tmp_path / "run", snapshot_every=60)
    shorten(run, 120)
    with viewed(run) as found:
        page = opened(browser, found, "now?at=40")
        where = page.locator("#where")
        playwright.expect(where).to_contain_text("event 120 of")
        playwright.expect(where).to_contain_text("of event 40 nothing is kept (run.journal is compact)")
        page.fill("#step", "1")
        page.press("#step", "Enter")
        page.locator("#refused", has_text="There is no moment of step 1 any more").wait_for()
        page.click("#live")
        playwright.expect(where).not_to_contain_text("nothing is kept")
        page.close()


def test_an_error_of_a_page_is_no_lost_connection(browser, link):
    page = opened(browser, link, "now")
    for name, path in (("Metrics", "metrics"), ("Group", "groups/5")):
        page.route(f"**/api/runs/0/{path}", lambda route: route.fulfill(json={"life": None}))
        page.evaluate(f"location.hash = '#{name.lower()}?run=0&group=5'")
        page.wait_for_selector("#trouble:not([hidden]), #page [role=alert]")
        assert "does not answer" not in page.inner_text("body")
        playwright.expect(page.locator("#state")).to_have_text("is over")
    page.unroute_all(behavior="wait")
    page.close()


def test_a_page_that_follows_takes_no_selection_focus_or_scroll_away(browser, live):
    page = opened(browser, live, "now", width=420)
    page.evaluate("document.styleSheets[1].insertRule('#page table { min-width: 900px }')")
    card = "[...document.querySelectorAll('.card')].find((one) => one.innerText.startsWith('Groups'))"
    page.evaluate(f"{card}.scrollTo(60, 0)")  # in one go: what a locator finds may be replaced
    looks(page, "/now")
    assert page.evaluate(f"{card}.scrollLeft") == 60
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#page .figures'))")
    looks(page, "/moment")
    assert "train steps" in page.evaluate("String(getSelection())")
    assert "the page waits" in page.inner_text("#where")
    page.evaluate("getSelection().removeAllRanges()")
    looks(page, "/now")
    open_tab(page, "Timeline")
    page.locator("canvas.timeline").focus()
    looks(page, "/timeline")
    assert page.evaluate("document.activeElement.className") == "timeline"
    page.close()


def test_a_run_that_ends_takes_no_selection_or_scroll_away(browser, live, tmp_path):
    page = opened(browser, live, "now", width=420)
    page.evaluate("document.styleSheets[1].insertRule('#page table { min-width: 900px }')")
    card = "[...document.querySelectorAll('.card')].find((one) => one.innerText.startsWith('Groups'))"
    page.evaluate(f"{card}.scrollTo(60, 0)")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#page .figures'))")
    (tmp_path / "run" / "summary.json").write_text("{}")
    playwright.expect(page.locator("#state")).to_have_text("is over")
    looks(page, "/api/runs", 1)
    assert "train steps" in page.evaluate("String(getSelection())")
    assert "As the run stood" in page.inner_text("#page")
    page.evaluate("getSelection().removeAllRanges()")
    playwright.expect(page.locator("#page")).not_to_contain_text("As the run stood", timeout=LIMIT_MS)
    assert page.evaluate(f"{card}.scrollLeft") == 60
    page.close()


def test_another_run_has_no_zoom_of_the_one_before_and_one_that_is_not_there_is_named(page):
    page.evaluate("location.hash = '#timeline?run=0&begin=1&end=2'")
    page.wait_for_selector("canvas.timeline")
    page.select_option("#run", "1")
    page.wait_for_url("**run=1**")
    assert not re.search("begin|end", page.url)
    page.evaluate("location.hash = '#controls?run=7'")
    page.locator("#trouble", has_text="There is no run 7 here: this view shows 2, numbered from 0").wait_for()
    assert page.locator("#page section").count() == 0
    assert page.input_value("#run") == ""
    page.select_option("#run", "0")
    wait_for(page, "nobody could obey")
