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
