"""The view in a real browser: what pages say of runs of agents, of supervised runs, and of evaluations."""

from tests.integration.test_pages_at_hand_in_a_browser import changed
from tests.support.chromium import browser, link, needs_chromium, page, wait_for

__all__ = ["browser", "link", "page"]  # fixtures
pytestmark = needs_chromium


def test_an_agents_group_has_no_version_before_its_first_token_and_given_tokens_have_none(page):
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
            "members": [member],
        }  # fmt: skip

    changed(page, "**/now*", begin)
    changed(page, "**/groups/*", give)
    page.evaluate("location.hash = '#now?run=0&at=9'")
    wait_for(page, "group 5: beginning, waits for its start")
    page.evaluate("location.hash = '#group?run=0&group=5&at=9'")
    wait_for(page, "2 given + 3 by v4")
    page.unroute_all(behavior="wait")
