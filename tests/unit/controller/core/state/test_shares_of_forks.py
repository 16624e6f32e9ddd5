"""Shares of a batch whose episodes have several trajectories: of what they are counted in."""

from controller.core.state.accounts import Accounts
from controller.core.state.batches.contributions import Contribution
from protocol.messages import TrainItem
from tests.support.batch_line import batch_metrics


def test_the_share_of_partial_trajectories_is_of_trajectories():
    items = tuple(TrainItem(0, member, 1, 1.0, 0.0, "stop", (), 0, ()) for member in range(4))
    one = Contribution(
        items=items, lengths=(8,), first_versions={0: 4}, cut=0, partial=3, reward_sum=1.0,
        reward_squares=0.0, reward_parts={},
    )  # fmt: skip
    assert batch_metrics([one], 0)["partial/share"] == 0.75


def test_what_is_as_old_as_the_bound_is_within_it():
    accounts = Accounts(max_staleness=2)
    accounts.consume({2: 5, 3: 4})
    assert (accounts.violations, accounts.ages) == (4, {2: 5, 3: 4})
