"""What a step's line says of each source of prompts, and an evaluation's of each part of the reward."""

import pytest

from controller.core.state.accounts import without_rollout
from controller.core.state.batches.contributions import Contribution
from controller.core.state.evaluation_report import Answered, line
from controller.core.state.groups import Group, Trajectory
from protocol.ids import TrajectoryId
from tests.support.batch_line import batch_metrics


def contribution(source, *, reward, length, responses=2):
    lengths = (length,) * responses
    return Contribution((), lengths, {0: responses}, 0, 0, reward * responses, 0.0, {}, source)


def test_each_source_has_its_responses_their_reward_and_length():
    groups = [
        contribution(0, reward=1.0, length=10),
        contribution(2, reward=0.25, length=30, responses=4),
        contribution(0, reward=0.5, length=20, responses=6),
    ]
    found = batch_metrics(groups, 1, ["easy", "none", "hard"])
    assert {key: value for key, value in found.items() if key.startswith("source/")} == {
        "source/easy/responses": 8,
        "source/easy/reward": pytest.approx(5 / 8),
        "source/easy/response_length": pytest.approx(140 / 8),
        "source/none/responses": 0,
        "source/hard/responses": 4,
        "source/hard/reward": pytest.approx(0.25),
        "source/hard/response_length": pytest.approx(30),
    }
    assert not any(key.startswith("source/") for key in batch_metrics(groups, 1))
    assert not any(key.startswith("source/") for key in without_rollout(found))


def test_a_group_brings_its_source():
    group = Group(3, source=2, policy_version=0, rewards=(1.0,), outcomes=(0.0,), size=1)
    group.members = [Trajectory(TrajectoryId(3, 0), 4, state="finished", ending="stop")]
    group.state = "scored"
    assert group.contribute().source == 2


def test_an_evaluation_tells_each_part_over_the_prompts_that_it_scored():
    def answered(*rewards, **parts):
        return Answered(rewards, (5,) * len(rewards), 0, {1: 10}, tuple(parts.items()))

    prompts = {
        0: answered(1.0, 0.0, exact=(1.0, 0.0), brief=(0.5, 0.25)),
        1: answered(1.0, 1.0, exact=(1.0, 1.0)),
        2: answered(0.5, 0.5),
    }
    found = line(prompts, {}, ["a", "b", "b"], samples=2, threshold=1.0)
    assert found["reward/exact"] == pytest.approx(0.75)
    assert found["reward/brief"] == pytest.approx(0.375)
    assert found["sources"]["b"]["reward/exact"] == 1.0
    assert "reward/brief" not in found["sources"]["b"]


def test_the_parts_of_a_group_are_those_that_its_reward_worker_told():
    group = Group(1, rewards=(1.0, 0.0), reward_parts=(("exact", (1.0, 0.0)),))
    assert Answered.of(group).parts == (("exact", (1.0, 0.0)),)
