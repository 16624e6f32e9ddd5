"""A run that goes on, from its link to its orders, as somebody sees it who has only a browser."""

import json
import os
import re
import subprocess
import sys
from threading import Thread

import pytest
import yaml
from made_model import TASK, lay_model

from controller.durability.recording import Recording
from controller.durability.replay import replay
from tests.support.chromium import CHROMIUM, LIMIT_MS, ROOT, browser, open_tab, playwright

__all__ = ["browser"]  # a fixture
STEPS = 4_000  # more than the test waits for
pytestmark = [
    pytest.mark.costly,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"),
]


@pytest.fixture
def started(tmp_path):
    """A run with two instances: its directory and its link."""
    lay_model(tmp_path / "run")
    tree = {
        "run": {"dir": str(tmp_path), "name": "run", "steps": STEPS},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "reward": {"function": f"{TASK}:reward"},
        "rollout": {"instances": 2, "group_size": 4, "max_prompt_tokens": 40, "max_response_tokens": 12},
        "trainer": {"batch_groups": 4, "checkpoint_steps": 0},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    words = [sys.executable, "-u", "launch.py", str(tmp_path / "run.yaml")]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"STALEFLOW_NO_INSTALL": "1"}
    ) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("View: http://127.0.0.1:")), None)
        assert line is not None, "the run has ended without a link"
        Thread(target=process.stdout.read, daemon=True).start()  # so that it never waits for a reader
        token = (tmp_path / "run" / "view.token").read_text()
        yield tmp_path / "run", f"{line.split()[1].partition('?')[0]}?token={token}", process
        process.terminate()
        process.wait()


@pytest.fixture
def page(browser, started):
    """The run's page, of somebody who says yes to all that is asked."""
    found = browser.new_page(viewport={"width": 1280, "height": 800})
    found.set_default_timeout(LIMIT_MS)
    found.on("dialog", lambda dialog: dialog.accept())
    found.goto(started[1])
    yield found
    found.close()


def steps_of(page):
    """Train steps, as the page Now has them."""
    found = re.search(rf"([\d,]+) of {STEPS:,}", page.inner_text("#page"))
    return int(found[1].replace(",", "")) if found else 0


def order(page, title, *, why, argument=None):
    """Give an order on the page Controls; what the run answers."""
    open_tab(page, "Controls")
    card = page.locator("section.card", has=page.get_by_role("heading", name=title, exact=True))
    if argument is not None:
        card.locator("input[name=argument]").fill(argument)
    card.locator("input[name=why]").fill(why)
    card.locator("button").click()
    answer = card.locator("[role=status]")
    playwright.expect(answer).to_have_text(re.compile(r"\w"), timeout=LIMIT_MS)
    return answer.inner_text()


def wait_for_step(page, least):
    """Until the page shows that many train steps."""
    open_tab(page, "Now")
    while steps_of(page) < least:
        with page.expect_response(lambda answer: "/now" in answer.url):
            pass


def test_a_run_is_seen_to_move_and_obeys_the_page(page, started, browser):
    run, link, process = started
    wait_for_step(page, 1)
    wait_for_step(page, steps_of(page) + 2)  # the counter moves, though nobody clicks

    assert "paused" in order(page, "Pause", why="lunch")
    open_tab(page, "Now")
    playwright.expect(page.locator(".headline")).to_contain_text("PAUSED", timeout=LIMIT_MS)
    assert "lunch" in page.inner_text(".headline")
    other = browser.new_page()
    other.on("dialog", lambda dialog: dialog.accept())
    other.goto(link)
    assert "goes on" in order(other, "Unpause", why="no lunch")
    assert "not paused" in order(page, "Unpause", why="back from lunch"), "somebody else was faster"
    other.close()

    wait_for_step(page, 5)
    assert "no live key" in order(page, "Change a live key", why="", argument="trainer.lr=1")
    assert "rollout-1" in order(page, "Drain a worker", why="smaller", argument="rollout-1")
    open_tab(page, "Now")
    playwright.expect(page.locator("table", has_text="rollout-1")).to_have_count(0, timeout=LIMIT_MS)

    open_tab(page, "Controls")
    given = page.locator("section.card", has=page.get_by_role("heading", name="Orders so far"))
    for words in ("pause", "unpause", "lunch", "drain rollout-1"):
        playwright.expect(given).to_contain_text(words, timeout=LIMIT_MS)
    page.get_by_label("controller, or a worker's name").fill("rollout-0")
    page.get_by_role("button", name="Stacks").click()
    stacks = page.get_by_role("log", name="stacks")
    playwright.expect(stacks).to_contain_text("workers/host/serve.py", timeout=LIMIT_MS)
    page.get_by_label("controller, or a worker's name").fill("rollout-9")
    page.get_by_role("button", name="Stacks").click()
    playwright.expect(stacks).to_contain_text("expected one of controller, reward-0", timeout=LIMIT_MS)

    open_tab(page, "Timeline")
    playwright.expect(page.locator(".legend").first).to_contain_text("gone", timeout=LIMIT_MS)
    find = page.get_by_label("filter of workers")
    find.click()
    for letter in "rollout":  # slower than the page is made again
        page.keyboard.type(letter)
        with page.expect_response(lambda answer: "/moment" in answer.url):
            pass
    assert find.input_value() == "rollout", "nobody's words are taken from under their hands"

    process.terminate()
    process.wait()
    assert json.loads((run / "summary.json").read_text())["steps"] >= 5
    with Recording(run) as recording:
        assert replay(recording).is_equal
