"""Every generated token is in one account."""

import pytest

from controller.core.state.accounts import Accounts


@pytest.mark.parametrize("end", ["trained", "aborted", "filtered", "evaluated"])
def test_tokens_of_groups_that_leave_are_counted_by_what_became_of_them(end):
    accounts = Accounts(max_staleness=2)
    accounts.take(70)
    accounts.take_late(30)
    accounts.close(50, end)
    tokens = accounts.tokens()
    assert (tokens.generated, tokens.lost, tokens.in_flight, getattr(tokens, end)) == (100, 30, 20, 50)
    spent = tokens.trained + tokens.aborted + tokens.filtered + tokens.lost + tokens.evaluated
    assert tokens.generated == spent + tokens.in_flight


def test_what_comes_late_is_lost_until_the_run_ends_and_aborted_then():
    accounts = Accounts(max_staleness=2)
    accounts.take_late(30)
    accounts.is_ending = True
    accounts.take_late(5)
    tokens = accounts.tokens()
    assert (tokens.generated, tokens.lost, tokens.aborted, tokens.in_flight) == (35, 30, 5, 0)


def test_ages_beyond_the_bound_are_violations():
    accounts = Accounts(max_staleness=2)
    accounts.consume({0: 5, 2: 3, 3: 4})
    accounts.consume({2: 1})
    assert accounts.ages == {0: 5, 2: 4, 3: 4}
    assert accounts.violations == 4


def test_only_evaluations_of_the_same_prompts_and_threshold_are_compared_in_the_summary():
    accounts = Accounts(max_staleness=2)

    def told(version, passed, digest, threshold=1.0):
        line = {"policy_version": version, "pass@1": passed, "data_digest": digest, "threshold": threshold}
        accounts.evaluated_as(line)
        return {which: line["policy_version"] for which, line in accounts.evaluations.items()}

    told(0, 0.9, "easy")
    assert told(10, 0.8, "easy") == {"first": 0, "best": 0, "last": 10}
    assert told(20, 0.2, "hard") == {"first": 20, "best": 20, "last": 20}
    told(30, 0.4, "hard")
    assert told(40, 0.3, "hard") == {"first": 20, "best": 30, "last": 40}
    assert told(50, 0.1, "hard", threshold=2.0) == {"first": 50, "best": 50, "last": 50}
    assert accounts.counts["evaluations/complete"] == 6
