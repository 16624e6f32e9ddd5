"""Which groups of a batch are kept for people."""

from controller.core.state.groups import Group, Trajectory
from controller.core.state.kept_samples import WorstAnswers, choose, kept_groups
from protocol.ids import TrajectoryId
from protocol.messages import Segment


def scored(id: int, rewards: tuple[float, ...], *, version: int = 5) -> Group:
    group = Group(id, policy_version=version, size=len(rewards), rewards=rewards, outcomes=rewards)
    for i in range(len(rewards)):
        member = Trajectory(TrajectoryId(id, i), 3, state="finished")
        member.segments[:] = [Segment(1, version, 2)]
        group.members.append(member)
    return group


FLAT = (0.5, 0.5)
BATCH = [
    scored(1, FLAT), scored(2, (0.0, 1.0)), scored(3, (0.2, 0.8)), scored(4, FLAT, version=3),
    scored(5, FLAT), scored(6, FLAT),
]  # fmt: skip


def test_the_widest_spreads_and_the_oldest_are_kept_and_one_by_chance():
    chosen = choose(BATCH, 4, step=7, seed=0)
    assert [(group.id, why) for group, why in chosen[:2]] == [(2, "spread"), (3, "spread")]
    assert chosen[2][1] == "random"
    assert chosen[3][1] == "oldest"
    assert 4 in (chosen[2][0].id, chosen[3][0].id)
    assert len({group.id for group, _ in chosen}) == 4


def test_the_choice_depends_on_the_batch_the_step_and_the_seed_alone():
    def ids(batch: list[Group], step: int, seed: int) -> list[int]:
        return [group.id for group, _ in choose(batch, 4, step=step, seed=seed)]

    assert ids(BATCH, 7, 0) == ids(BATCH[::-1], 7, 0)
    assert len({ids(BATCH, step, seed)[2] for step in range(10) for seed in range(3)}) > 1


def test_no_more_are_kept_than_there_are():
    assert len(choose(BATCH[:2], 4, step=1, seed=0)) == 2
    assert choose(BATCH, 0, step=1, seed=0) == []


def test_the_items_of_a_kept_group_go_with_it_in_order():
    kept = kept_groups(BATCH, count=1, step=1, seed=0)
    assert [(item.group, item.member) for item in kept[0].items] == [(2, 0), (2, 1)]
    assert kept_groups(BATCH, count=0, step=1, seed=0) == ()


def test_of_an_evaluation_the_lowest_rewards_are_kept_of_prompts_that_failed():
    worst = WorstAnswers(2)
    assert worst.take(scored(10, (1.0, 1.0)), 1.0) == (10,), "it passed"
    assert worst.take(scored(11, (1.0, 0.0)), 1.0) == ()
    assert worst.take(scored(12, (0.5, 0.9)), 1.0) == ()
    assert worst.take(scored(13, (0.9, 0.9)), 1.0) == (13,), "two are worse"
    assert worst.take(scored(14, (0.0, 0.0)), 1.0) == (12,), "it is worse than that one"
    assert [(one.group, one.why) for one in worst.groups] == [(14, "held out"), (11, "held out")]
    items = worst.groups[1].items
    assert [(item.group, item.member, item.reward, item.outcome) for item in items] == [
        (11, 0, 1.0, 0.0),
        (11, 1, 0.0, 0.0),
    ]


def test_of_an_evaluation_nothing_is_kept_unless_it_is_asked_for():
    worst = WorstAnswers()
    assert worst.take(scored(10, (0.0, 0.0)), 1.0) == (10,)
    assert worst.groups == ()
