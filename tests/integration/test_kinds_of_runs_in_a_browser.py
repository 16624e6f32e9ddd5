"""The view in a real browser: what pages say of runs of agents, of supervised runs, and of evaluations."""

import re

from tests.integration.test_pages_at_hand_in_a_browser import changed
from tests.support.chromium import browser, link, needs_chromium, open_tab, page, playwright, wait_for

__all__ = ["browser", "link", "page"]  # fixtures
pytestmark = needs_chromium
SPLIT = "2 given + 3 by v4"  # where a response got its tokens


def test_of_an_agents_group_no_version_is_made_up_and_no_length_of_what_has_ended(page):
    def begin(found):
        found["oldest_group"] = {
            "id": 5, "state": "beginning", "policy_version": -1, "response_tokens": 0,
            "waits_for": "its start",
        }  # fmt: skip

    def give(found):
        member = {
            "member": 0, "state": "running", "where": "rollout-0", "tokens": 3, "expected": 5, "attempt": 2,
            "segments": [[1, -1, 2], [2, 4, 3]], "ending": "", "reward": None, "advantage": None,
        }  # fmt: skip
        found["standing"] = {
            "state": "generating", "policy_version": 4, "due": 6, "prompt_tokens": 0, "starts": 1,
            "members": [{**member, "member": 1, "state": "finished", "expected": 777}, member],
        }  # fmt: skip

    changed(page, "**/now*", begin)
    changed(page, "**/groups/*", give)
    page.evaluate("location.hash = '#now?run=0&at=9'")
    wait_for(page, "group 5: beginning, waits for its start")
    page.evaluate("location.hash = '#group?run=0&group=5&at=9'")
    wait_for(page, "2 given + 3 by v4")
    rows = page.locator("section", has_text="Responses at this moment").locator("tbody tr")
    playwright.expect(rows).to_have_text([".1finishedrollout-032" + SPLIT, ".0runningrollout-0352" + SPLIT])
    page.unroute_all(behavior="wait")


def test_the_seconds_of_an_evaluation_are_not_laid_over_the_seconds_of_the_run(page):
    def evaluate(found):
        found["evaluations"] = {"policy_version": [2], "time_s": [0.5], "reward/mean": [0.5]}

    changed(page, "**/metrics", evaluate)
    page.evaluate("location.hash = '#metrics?run=0&find=e'")
    for name, said in (("reward/mean", r"\d, ● held out$"), ("time_s", r"\d$")):
        head = page.locator(".plot h3", has_text=re.compile(f"^{name}(?!/)")).last  # not the evaluations'
        head.scroll_into_view_if_needed()
        playwright.expect(head).to_have_text(re.compile(said))
    page.unroute_all(behavior="wait")


def test_of_a_supervised_run_nothing_is_said_of_staleness_or_published_versions(page):
    def supervise(found):
        for run in found["runs"]:
            run["config"]["trainer"]["algorithm"] = "sft"

    wait_for(page, "mean staleness (bound 1)")
    changed(page, "**/api/runs", supervise)
    page.reload()
    wait_for(page, "tokens taken from the data")
    shown = page.inner_text("#page").lower()
    labels = "mean staleness", "older than the bound", "newest version published", "responses queued"
    assert not [label for label in (*labels, "staleness of what was trained") if label in shown]
    open_tab(page, "Metrics")
    page.locator(".plot").first.wait_for()
    assert "staleness of what was trained" not in page.inner_text("#page").lower()
    page.unroute_all(behavior="wait")
