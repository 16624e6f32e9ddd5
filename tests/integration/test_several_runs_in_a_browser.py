"""The view in a real browser: a run that begins to go on, and a change of the run while answers are late."""

import json
import os
import re
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from controller.core.events import Received
from controller.durability.store import Store
from protocol.ids import PeerId
from protocol.messages import DrainWorker
from tests.integration.test_pages_at_hand_in_a_browser import changed, opened
from tests.support.chromium import browser, needs_chromium, open_tab, playwright, viewed, wait_for
from tests.support.shown_run import cut, recorded

__all__ = ["browser"]  # a fixture
pytestmark = needs_chromium
CONTROLS = "nav a:has-text('Controls')"
FRAMES = 6_000  # of the browser, until somebody must have asked
WAY = {"reading": {"number": 1, "last": 60}, "said": {}}  # an answer while the journal is read
STANDS = "The run does not go on, so nobody could obey."


def stopped(run):
    """A recorded run in the middle of which its controller has gone."""
    recorded(run)
    cut(run, 60)
    (run / "summary.json").unlink()
    return run


def go_on(run):
    """As if this process were its controller."""
    (run.parent / f".{run.name}.lock").write_text(str(os.getpid()))


def still_read(route):
    """Answer that the journal is not read as far yet."""
    route.fulfill(status=202, json=WAY)


@contextmanager
def held(page, address, answer=lambda route: route.continue_()):
    """Answers at this address come when the block has ended; what it gives waits for the first question."""
    waiting, is_over = [], False

    def hold(route):
        if is_over:
            route.continue_()
        else:
            waiting.append(route)

    def wait_for_first():
        for _ in range(FRAMES):
            if waiting:
                return
            page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        pytest.fail(f"Nobody has asked for {address}.")

    page.route(address, hold)
    yield wait_for_first
    is_over = True
    for route in waiting:
        answer(route)


def test_controls_of_a_run_that_has_just_begun_to_go_on_are_there_at_once(browser, tmp_path):
    run = stopped(tmp_path / "run")
    with viewed(run) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        playwright.expect(page.locator("#state")).to_have_text("its controller is gone")
        go_on(run)
        open_tab(page, "Controls")
        wait_for(page, "Save a checkpoint")
        assert STANDS not in page.inner_text("#page")
        page.close()


def test_a_late_answer_about_one_run_says_nothing_of_whether_another_goes_on(browser, tmp_path):
    live, over = stopped(tmp_path / "live"), recorded(tmp_path / "over")
    go_on(live)
    with viewed(live, over) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        playwright.expect(page.locator("#state")).to_have_text("goes on")
        with held(page, "**/runs/0/moment*") as wait_for_first:
            page.click(CONTROLS)
            wait_for_first()
            page.select_option("#run", "1")
            page.wait_for_url("**run=1**")
        wait_for(page, STANDS)
        playwright.expect(page.locator("#state")).to_have_text("is over")
        page.close()


def test_answers_to_the_orders_of_a_run_are_asked_of_that_run(browser, tmp_path):
    run, other = stopped(tmp_path / "run"), recorded(tmp_path / "other")
    store = Store(run / "run.db")
    with store.transaction():
        for name in ("nobody", "no one"):
            store.append_events(99.0, [(Received(PeerId("a" * 32), DrainWorker(name)), False)])
    store.close()
    with viewed(run, other) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        with held(page, re.compile(r"/runs/1/moment$")), held(page, "**/runs/0/moment?event=*") as first:
            page.click(CONTROLS)
            first()
            page.select_option("#run", "1")
            page.wait_for_url("**run=1**")
        wait_for(page, "None.")
        page.select_option("#run", "0")
        answers = page.locator("section", has_text="Orders so far").locator("tbody tr td:last-child")
        playwright.expect(answers).to_have_text([re.compile("refused: "), re.compile("refused: ")])
        page.close()


def test_who_steps_where_the_journal_is_still_read_goes_to_no_event_of_another_run(browser, tmp_path):
    runs = [recorded(tmp_path / name) for name in ("run", "long")]
    with viewed(*runs) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        page.route("**/runs/1/now*", still_read)
        page.select_option("#run", "1")
        wait_for(page, "The journal is being read")
        for button in ("#back", "#forward", "#undecide", "#decision"):
            page.click(button, force=True)
        page.evaluate("() => new Promise((done) => setTimeout(done))")  # the address has changed by then
        assert "at=" not in page.url
        assert page.inner_text("#refused") == ""
        page.reload()  # nobody knows of any moment yet
        wait_for(page, "The journal is being read")
        page.click("#back")
        page.evaluate("() => new Promise((done) => setTimeout(done))")
        assert "at=" not in page.url
        page.close()


def test_a_ninth_run_is_compared_only_in_the_place_of_another_one(browser, tmp_path):
    runs = [recorded(tmp_path / name) for name in ("run", "other")]
    with viewed(*runs) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        changed(page, "**/api/runs", lambda found: found.update(runs=found["runs"] * 5))
        page.evaluate("location.hash = '#compare?run=0&runs=0,1,2,3,5,6,7,8'")
        page.reload()
        buttons = page.locator("#page section").first.locator("button")
        playwright.expect(buttons).to_have_count(10)
        for place in (4, 9):
            playwright.expect(buttons.nth(place)).to_be_disabled()
            assert "leave one out first" in buttons.nth(place).get_attribute("title")
        buttons.nth(8).click()
        playwright.expect(buttons.nth(9)).to_be_enabled()
        buttons.nth(4).click()
        playwright.expect(buttons.nth(9)).to_be_disabled()
        chosen = [buttons.nth(place).get_attribute("aria-pressed") == "true" for place in range(10)]
        assert chosen == [True] * 8 + [False] * 2
        page.unroute_all(behavior="wait")
        page.close()


def test_a_second_of_a_run_that_was_left_is_asked_for_no_more(browser, tmp_path):
    runs = [recorded(tmp_path / "run"), stopped(tmp_path / "short")]
    address, asked = "**/runs/0/moment?second=*", []
    with viewed(*runs) as (base, token):
        page = opened(browser, (base, token), "#timeline?run=0")
        where = page.locator("#where")
        with page.expect_response(address), held(page, address, still_read) as first:
            page.locator("canvas.timeline").click(position={"x": 400, "y": 30})
            first()
            page.select_option("#run", "1")
            playwright.expect(where).to_contain_text("event 60 of 60")
            page.on("request", lambda request: asked.append(request.url))
        page.evaluate("fetch('/api/runs').then((answer) => answer.text())")
        assert "/runs/0/" not in " ".join(asked)
        assert where.inner_text().startswith("event 60 of 60")
        page.close()


def is_post(answer):
    """Whether this is the answer to something that was sent."""
    return answer.request.method == "POST"


def posted(page, address):
    """What is sent to this address, which hears nothing of it: by path and body."""
    sent = []

    def take(route):
        if route.request.method != "POST":
            route.continue_()
            return
        sent.append((urlsplit(route.request.url).path, route.request.post_data_json))
        route.fulfill(json={"answer": "done"})

    page.route(address, take)
    return sent


def test_a_prediction_is_from_the_moment_and_of_the_run_that_stood_there_when_it_was_asked_for(
    browser, tmp_path
):
    runs = [recorded(tmp_path / name) for name in ("run", "other")]
    address = "**/runs/0/moment?event=*"
    with viewed(*runs) as (base, token):
        page = opened(browser, (base, token), "#whatif?run=0&at=40")
        sent = posted(page, "**/whatif")
        with page.expect_response(is_post), held(page, address, still_read) as first:
            page.click("button:text-is('Predict')")
            first()
            page.evaluate("location.hash = '#whatif?run=1&at=7'")
            playwright.expect(page.locator("#where")).to_contain_text("event 7 of")
        now_s = page.evaluate("fetch('/api/runs/0/moment?event=40').then((answer) => answer.json())")["now_s"]
        assert sent == [("/api/runs/0/whatif", {"changes": {}, "at_s": now_s})]
        page.close()


@pytest.mark.parametrize(
    ("where", "field", "words", "button", "path", "asked"),
    [
        ("controls", "input[name=why] >> nth=0", "lunch", "Pause", "actions", ["run: Pause?"]),
        ("controls", "input[name=worker]", "controller", "Stacks", "stacks", []),
        ("whatif", "input[data-key='rollout.instances']", "5", "Predict", "whatif", []),
    ],
)
def test_a_form_that_still_stands_is_of_its_own_run_and_not_of_the_one_just_chosen(
    browser, tmp_path, where, field, words, button, path, asked
):
    runs, said = [stopped(tmp_path / name) for name in ("run", "other")], []
    for run in runs:
        go_on(run)
    with viewed(*runs) as (base, token):
        page = opened(browser, (base, token), f"#{where}?run=0")
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.accept()))
        sent = posted(page, f"**/{path}")
        with held(page, "**/runs/1/moment*") as first:
            page.fill(field, words)
            page.select_option("#run", "1")
            first()
            with page.expect_response(is_post):
                page.click(f"button:text-is('{button}')", force=True)
        ((to, body),) = sent
        assert to == f"/api/runs/0/{path}"
        assert words in json.dumps(body)
        assert said == asked
        page.close()
