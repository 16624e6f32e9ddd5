"""The view in a real browser: time moves, and what a run did is shown by worker, group and batch."""

import os

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
from tests.support.shown_run import recorded

__all__ = ["browser", "link", "page"]  # fixtures
pytestmark = needs_chromium


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
    page.unroute_all(behavior="wait")


def test_an_address_of_no_page_and_no_group_is_told_or_is_now(page):
    for name in ("nothing", "constructor", "__proto__"):
        open_tab(page, "Controls")
        page.evaluate(f"location.hash = '#{name}'")
        page.wait_for_selector("nav a[aria-current]:has-text('Now')")
        assert "is not a function" not in page.inner_text("#page")
    page.evaluate("location.hash = '#group?group=abc'")
    wait_for(page, '"abc" is no number of a prompt.')


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


def test_a_click_on_a_lane_leads_to_what_that_worker_had_in_hand_and_to_its_groups(page):
    open_tab(page, "Timeline")
    canvas = page.locator("canvas.timeline")
    canvas.wait_for()
    for text in ("prefill: no token yet", "saving a checkpoint"):
        page.locator(".legend", has_text=text).wait_for()
    page.fill("input[aria-label='filter of workers']", "rollout-0")
    page.press("input[aria-label='filter of workers']", "Enter")
    wait_for(page, "1 workers")
    found = page.evaluate("fetch('/api/runs/0/timeline?find=rollout-0').then((answer) => answer.json())")
    busy = [one for one in found["lanes"][0]["spans"] if found["kinds"][one[2]] == "generating"]
    begin, end, *_ = max(busy, key=lambda one: one[1] - one[0])
    wide = canvas.bounding_box()["width"] - 122  # beside the names
    canvas.click(position={"x": 118 + wide * (begin + end) / 2 / found["end_s"], "y": 30})
    held = page.locator("section", has_text="In hand of rollout-0")
    held.wait_for()
    assert "tokens)" in held.inner_text()
    at = page.url.partition("at=")[2].partition("&")[0]
    held.locator("a").first.click()
    page.wait_for_selector("svg rect")
    assert f"at={at}" in page.url
    assert "rollout-0" in page.locator("section", has_text="Responses at this moment").inner_text()


def test_the_deadline_of_a_group_is_a_line_in_its_life_or_told_where_it_has_not_passed(page):
    page.evaluate("location.hash = '#group?run=0&group=3'")
    page.wait_for_selector("svg line.deadline", state="attached")  # a line has no size
    texts = page.locator("svg[role=img] text")
    assert "was the last that could take it" in texts.last.text_content()
    boxes = [texts.nth(place).bounding_box() for place in range(texts.count())]
    for place, one in enumerate(boxes):
        for other in boxes[:place]:  # no label hides another
            is_beside = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
            assert is_beside or abs(one["y"] - other["y"]) >= 10

    def to_come(route):
        answer = route.fetch()
        found = answer.json()
        if "life" in found:  # else the history is still being read, and the page asks again
            found["life"] |= {"due": 7, "due_s": None}
        route.fulfill(status=answer.status, json=found)

    page.route("**/groups/*", to_come)
    page.evaluate("location.hash = '#group?run=0&group=4'")
    wait_for(page, "Deadline: step 8, the batch of v7, is the last that may take it, and has not been made.")
    assert page.locator("svg line.deadline").count() == 0
    page.unroute_all(behavior="wait")  # else an answer on its way finds no page


def test_an_axis_has_room_for_the_marks_that_it_has_at_last(page):
    code = """async () => {
        const { room } = await import("/pages/metrics.js");
        const axis = { font: ["12px sans-serif"], ticks: { size: 10 }, gap: 5 };
        const self = { ctx: document.createElement("canvas").getContext("2d"), axes: [null, axis] };
        const asked = (words, round) => (axis._size = room(self, words, 1, round));
        return [asked(["0.5", "1"], 1), asked(["0.75", "1"], 2), asked(["1"], 3)];
    }"""
    first, second, third = page.evaluate(code)
    assert first < second == third


def test_a_page_that_is_behind_a_run_says_so(page):
    def behind(route):
        now = route.fetch().json()
        now |= {"state": "live", "number": now["last"] - 5, "now_s": now["until_s"] - 2.5, "quiet_s": 0.0}
        route.fulfill(json=now)

    page.route("**/api/runs/0/now*", behind)
    page.reload()
    wait_for(page, "The view is behind the run by 2.5 s")
    page.unroute_all(behavior="wait")


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


def test_a_decision_is_explained_and_found_by_the_keyboard(page):
    page.evaluate("location.hash = '#why?run=0&at=40'")
    page.wait_for_selector("nav a[aria-current]:has-text('Why')")
    page.locator("body").press("]")
    page.wait_for_url(lambda url: "at=" in url and "at=40" not in url)
    wait_for(page, "commands that it gave")


def test_a_page_that_stays_open_sees_a_killed_run_go_on(browser, tmp_path):
    run = recorded(tmp_path / "run")
    (run / "summary.json").unlink()
    with viewed(run) as (base, token):
        page = browser.new_page()
        page.goto(f"{base}?token={token}")
        state = page.locator("#state")
        playwright.expect(state).to_have_text("its controller is gone")
        page.fill("#step", "2")
        page.press("#step", "Enter")
        wait_for(page, "2 of 4")
        figures = page.locator(".figures").first.inner_text()
        assert "~ " not in figures  # no time is left for what does not go on
        page.click("#live")
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
    is_read = False

    # One that stays: a request on its way while its route is taken off may never be answered.
    def read_or_told(route):
        if is_read:
            route.continue_()
        else:
            route.fulfill(status=202, json=way)

    page.route(moments, read_or_told)
    page.goto(f"{base}?token={token}")
    for text in ("event 20,000 of 1,000,000", "3 of 4", "Waits for 2 more groups"):
        wait_for(page, text)
    assert page.get_attribute("[role=progressbar]", "aria-valuenow") == "20000"
    open_tab(page, "Metrics")  # which needs no journal
    page.wait_for_selector(".plot canvas")
    assert "reading the journal" in page.inner_text("#where")
    open_tab(page, "Ledger")
    page.wait_for_selector("[role=progressbar]")
    is_read = True
    page.wait_for_selector(".column")
    assert page.locator("[role=progressbar]").count() == 0
    assert not page.is_visible("#trouble")
    is_read = False
    page.evaluate("location.hash = '#ledger?run=0&at=50'")  # what stood there stays, dimmed
    page.wait_for_selector("#page.busy .column")
    is_read = True
    page.wait_for_selector("#page:not(.busy) .column")
    assert page.input_value("#slider") == "50"
    page.unroute_all(behavior="wait")
    page.close()
