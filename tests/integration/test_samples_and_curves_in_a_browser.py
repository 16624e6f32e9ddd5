"""The view in a real browser: what the model said stays text, and figures are drawn and compared."""

import json
from pathlib import Path

import pytest

from controller.view.one_file import one_file
from controller.view.shown_run import ShownRun
from strategies.routing import ROUTINGS
from tests.integration.test_pages_at_hand_in_a_browser import changed
from tests.support.chromium import (
    HOSTILE,
    LIMIT_MS,
    browser,
    link,
    needs_chromium,
    open_tab,
    page,
    pixels_of,
    playwright,
    viewed,
    wait_for,
    with_hostile_sample,
)
from tests.support.kept_samples import add_samples, kept, response
from tests.support.shown_run import change, recorded

__all__ = ["browser", "link", "page"]  # fixtures
DRAWN_QUARTERS = """(view) => {
    const ratio = view.width / view.clientWidth, left = Math.round(118 * ratio);
    const wide = Math.floor((view.width - left - 4 * ratio) / 4);
    return [0, 1, 2, 3].map((part) => {
        const row = view.getContext('2d').getImageData(left + part * wide, Math.round(30 * ratio), wide, 1);
        return row.data.filter((one, place) => place % 4 === 3 && one > 0).length > wide / 2;
    });
}"""  # whether the first lane is drawn in each quarter of a timeline
NOTES_WORDS = """
window.words = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const at = this.getTransform().transformPoint({ x, y }), wide = this.measureText(text).width;
  window.words.push([text, at.x - wide * ({ right: 1, center: 0.5 }[this.textAlign] ?? 0)]);
  fill.call(this, text, x, y);
};
"""
pytestmark = needs_chromium


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


def test_curves_of_a_long_run_say_that_they_are_thinned_and_are_whole_at_their_end(browser, tmp_path):
    run = recorded(tmp_path / "run")
    lines = [{"step": i, "time_s": 2.0 * i, "reward/mean": 0.001 * i} for i in range(1, 9_001)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    held_out = {"policy_version": 3_333, "reward/mean": 0.5}
    (run / "evaluations.jsonl").write_text(f"{json.dumps(held_out)}\n")
    with viewed(run) as (base, token):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.set_default_timeout(LIMIT_MS)
        page.goto(f"{base}?token={token}#metrics?find=reward/mean")
        assert "Up to step 8000 a curve has the least and the most of every 16 steps" in page.inner_text(
            ".thinned"
        )
        page.locator(".plot h3", has_text="9, ● held out").wait_for()
        assert not page.locator(".plot h3", has_text="lines per point").count()
        assert not wrong
        page.close()


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


def test_what_if_predicts_beside_the_run_itself(page):
    open_tab(page, "What if")
    routings = page.locator("select[data-key='staleness.routing'] option")
    assert routings.all_inner_texts() == ["as now (marginal_gain)", *ROUTINGS]
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


def test_a_lane_of_bins_ends_where_its_run_is_known_to(page):
    def binned(found):
        found["lanes"] = [{"name": "rollout-0", "bins": [2] * 240, "fullness": [1] * 240, "speed": None}]
        found["end_s"], found["versions"] = 2 * found["known_s"], []

    changed(page, "**/timeline*", binned)
    page.evaluate("location.hash = '#compare?run=0&lanes=1'")  # the other run is as long again
    both = page.locator("section", has_text="Timelines").locator("canvas")
    playwright.expect(both).to_have_count(2, timeout=LIMIT_MS)
    for canvas in both.all():
        canvas.scroll_into_view_if_needed()
        assert canvas.evaluate(DRAWN_QUARTERS) == [True, True, False, False]
    open_tab(page, "Timeline")
    lane = page.locator("canvas.timeline")
    for share, said in ((0.45, "mostly generating"), (0.55, "not there")):
        lane.hover(position={"x": 118 + share * (lane.bounding_box()["width"] - 122), "y": 30})
        page.locator("output", has_text=said).wait_for()
    page.unroute_all(behavior="wait")


@pytest.mark.parametrize("how", [{"button": "right"}, {"button": "middle"}, {"modifiers": ["Control"]}])
def test_who_asks_the_browser_for_the_menu_of_a_timeline_stays_there(page, how):
    open_tab(page, "Timeline")
    page.wait_for_selector("canvas.timeline[style*=width]")
    moments = []
    page.on("request", lambda request: moments.append(request.url) if "second=" in request.url else None)
    page.locator("canvas.timeline").click(position={"x": 400, "y": 30}, **how)
    page.evaluate("() => new Promise((done) => setTimeout(done))")  # it would have been asked for by then
    assert not moments


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


def test_a_token_without_a_finite_logprob_is_not_taken_for_a_likely_one(browser, tmp_path):
    run = recorded(tmp_path / "run")
    add_samples(run, [kept(4, 9, [response(0, [7, 8], logprobs=[float("nan"), -0.05])])])
    change(run, "DELETE FROM samples WHERE group_id != 9")
    file = tmp_path / "run.html"
    file.write_text(one_file(ShownRun(run)))
    page = browser.new_page()
    page.goto(f"{file.as_uri()}#samples?by=logprob")
    playwright.expect(page.locator(".response .text span")).to_have_class(["dim", "p0"])
    titles = [span.get_attribute("title") for span in page.locator(".response .text span").all()]
    assert titles == ["v0, its engine told no finite logprob", "v0, 95.1 % (-0.05)"]
    page.close()


def test_numbers_beside_a_curve_are_whole_and_short(browser, tmp_path):
    run = recorded(tmp_path / "run")
    names = [f"pass@{k} of {source}" for k in (1, 2, 4) for source in range(24)]
    lines = [
        {
            "step": i,
            "time_s": 2.0 * i,
            "tokens/trained": 150_000 + 250_000 * i,
            "compute/flops_per_token": 2.2e9 + 3e8 * i,
            "odd/near": 1_000_000_000 + i,
            "odd/small": 2.5e-7 * i,
        }
        for i in range(1, 6)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    held_out = {"policy_version": 2, **dict.fromkeys(names, 0.5)}
    (run / "evaluations.jsonl").write_text(f"{json.dumps(held_out)}\n")
    with viewed(run) as (base, token):
        page = browser.new_page(viewport={"width": 1280, "height": 9_000})
        page.add_init_script(NOTES_WORDS)
        page.goto(f"{base}?token={token}#metrics")
        wait_for(page, "60 of 72: narrow them with the field above.")
        page.locator(".plot", has_text="odd/small").locator("canvas").wait_for()
        words = page.evaluate("window.words")
        assert all(any(text.endswith(unit) for text, _ in words) for unit in (" M", " G"))
        assert any(text.startswith("1.0000000") for text, _ in words), "no two of them are alike"
        assert all(left >= 0 for _, left in words), [text for text, left in words if left < 0]
        unnamed = """() => [...document.querySelectorAll("input, select, button")].filter(
            (one) => !one.labels.length && !one.ariaLabel && !/\\w/.test(one.textContent)
        ).map((one) => one.outerHTML)"""
        assert page.evaluate(unnamed) == []
        page.close()
