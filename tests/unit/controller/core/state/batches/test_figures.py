"""Figures of a batch are merged from what each group brought, and equal what its parts say."""

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.state.batches.figures import AT_ONCE, BatchFigures
from controller.core.state.groups import Group
from controller.core.state.transitions import move_group
from protocol.messages import Segment
from tests.support.batch_line import batch_metrics

REWARDS = st.floats(-1e6, 1e6)
RESPONSES = st.tuples(
    st.sampled_from(["stop", "length"]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=3),  # versions gained, tokens
    REWARDS,
)


def group(number: int, responses: list) -> Group:
    made = Group(number)
    made.start(0, size=len(responses), spare=1)
    for member, (ending, parts, _) in zip(made.members, responses, strict=False):
        version = 0
        for attempt, (gained, tokens) in enumerate(parts, 1):
            version += gained
            assert member.extend(attempt, version, tokens)
        made.finish(member, ending)
    made.rewards = tuple(reward for *_, reward in responses)
    made.outcomes = made.rewards
    return made


@given(st.lists(st.lists(RESPONSES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_a_line_says_of_the_batch_what_its_responses_say(batch):
    groups = [group(number, responses) for number, responses in enumerate(batch)]
    line = batch_metrics([one.contribute() for one in groups], 20)

    kept = [member for one in groups for member in one.kept]
    rewards = [reward for one in groups for reward in one.rewards]
    scale = max(map(abs, rewards)) + 1.0
    assert line["reward/mean"] == pytest.approx(fmean(rewards), abs=1e-9 * scale)
    assert line["reward/std"] == pytest.approx(pstdev(rewards), abs=1e-6 * scale)
    lengths = sorted(member.response_tokens for member in kept)
    assert line["response_length/mean"] == pytest.approx(fmean(lengths))
    assert line["response_length/p50"] == lengths[min(len(lengths) - 1, len(lengths) // 2)]
    assert line["response_length/max"] == lengths[-1]
    assert line["response_length/cut"] == fmean(member.ending == "length" for member in kept)
    ages = [20 - member.segments[0].policy_version for member in kept if member.segments]
    assert line["staleness/max"] == max(ages, default=0)
    assert line["staleness/mean"] == pytest.approx(fmean(ages) if ages else 0.0)
    assert line["staleness/hist"] == {str(age): ages.count(age) for age in sorted(set(ages))}
    assert line["partial/share"] == fmean(len({s.policy_version for s in m.segments}) > 1 for m in kept)


def test_what_a_group_brings_is_made_once_and_forgotten_when_it_begins_anew():
    one = group(7, [("stop", [(1, 3)], 1.0), ("length", [(2, 5)], 0.0)])
    brought = one.contribute()
    assert [(item.group, item.member, item.reward, item.segments) for item in brought.items] == [
        (7, 0, 1.0, (Segment(1, 1, 3),)),
        (7, 1, 0.0, (Segment(1, 2, 5),)),
    ]
    assert one.contribute() is brought
    move_group(one, "withdrawn")
    one.start(3, size=2)
    assert one.contribution is None


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([[1.0, 1.0], [0.0, 1.0]], 0.5),
        ([[0.1] * 3, [0.7] * 7], 1.0),  # their means are not exact
        ([[0.0, 1e-3]], 0.0),
        ([[1.0], [0.5, 0.5]], 1.0),  # a group of one compares nothing
    ],
)
def test_a_line_says_in_how_many_groups_all_rewards_are_equal(rewards, share):
    groups = [group(n, [("stop", [(0, 5)], reward) for reward in some]) for n, some in enumerate(rewards)]
    assert batch_metrics([one.contribute() for one in groups], 1)["groups/equal_rewards"] == share


def test_groups_of_one_say_nothing_of_equal_rewards():
    alone = group(0, [("stop", [(0, 5)], 1.0)])
    assert "groups/equal_rewards" not in batch_metrics([alone.contribute()], 1)


def test_figures_are_the_same_whether_counted_a_few_at_a_time_or_when_they_are_wanted():
    groups = [group(n, [("stop", [(n % 3, n + 1)], n / 7), ("length", [], 1.0)]) for n in range(3 * AT_ONCE)]
    brought = [one.contribute() for one in groups]
    at_once = batch_metrics(brought, 4, ["a"])
    for events in range(5):
        counted = BatchFigures(brought, 4, ["a"])
        for _ in range(events):
            counted.go_on()
        assert counted.line() == at_once
    assert counted.tokens == sum(one.response_tokens for one in groups)
    assert counted.responses == 2 * len(groups)
