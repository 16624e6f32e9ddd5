"""What is told of a decision is what the strategy decided."""

import random

import pytest

from controller.history import reasons
from strategies.admission import ADMISSIONS, by_cap, whole_window
from strategies.filtering import FILTERS
from strategies.migration import MIGRATIONS
from strategies.routing import ROUTINGS
from strategies.synchronization import SYNCHRONIZATIONS
from strategies.views import AdmissionView, InstanceView, RunningView, Settings, SyncView, WorkView


def views(dice, count):
    for index in range(count):
        running = dice.randint(0, 8)
        tokens = running * dice.randint(50, 3_000)
        yield InstanceView(
            index, dice.randint(2, 5), running, tokens, capacity=8, kv_tokens=16_000,
            expected_tokens=tokens * 2, has_sibling=dice.random() < 0.3, urgent=dice.randint(0, running),
            waiting=dice.choice([0, 0, 2]),
        )  # fmt: skip


def settings(dice):
    return Settings(
        mu=dice.choice([0.0, 0.3, 0.9]), newest_version=5, fresh=dice.randint(0, 12), typical_tokens=1_000,
        horizon_s=dice.choice([0.1, 5.0]), guard=dice.random() < 0.2, is_tail_bound=dice.random() < 0.5,
        urgency=dice.choice([0.0, 5.0]), keeps_kv=dice.random() < 0.5, sync_steps=2,
    )  # fmt: skip


@pytest.mark.parametrize("name", ROUTINGS)
def test_the_candidate_called_chosen_is_chosen_and_worth_most(name):
    dice, choose, seen = random.Random(name), ROUTINGS[name].choose, 0
    for _ in range(300):
        work = WorkView(dice.randint(0, 9), dice.randint(10, 4_000), 2, dice.random() < 0.5, 4_000)
        instances, knobs = list(views(dice, dice.randint(0, 5))), settings(dice)
        chosen = choose(work, instances, knobs)
        found = reasons.of_routing(choose, work, instances, knobs)
        assert [one.id for one in found.candidates if one.is_chosen] == ([] if chosen is None else [chosen])
        assert {one.id for one in found.candidates} == {one.id for one in instances}
        worth = {one.id: one.worth for one in found.candidates if one.worth is not None}
        if worth:
            assert chosen in worth
            assert worth[chosen] == max(worth.values())
        seen += chosen is not None
    assert seen > 50


@pytest.mark.parametrize("name", SYNCHRONIZATIONS)
def test_those_called_chosen_pull(name):
    dice, choose = random.Random(name), SYNCHRONIZATIONS[name]
    for _ in range(200):
        knobs = settings(dice)
        instances = [
            SyncView(i.id, i.policy_version, i.running, i.resident_tokens, 8, pull_s=dice.random(),
                     waiting=i.waiting, kv_tokens=16_000)
            for i in views(dice, 4)
        ]  # fmt: skip
        found = reasons.of_synchronization(choose, instances, knobs)
        assert {one.id for one in found.candidates if one.is_chosen} == {*choose(instances, knobs)}


@pytest.mark.parametrize("admit", [*ADMISSIONS.values(), by_cap, whole_window])
def test_admission_says_how_many_with_its_numbers(admit):
    view = AdmissionView(2, 32, 7, 6, 40, 10, 300, cap=60.0)
    found = reasons.of_admission(admit, view, 2.0)
    assert found is not None, f"give {admit.__name__} a case in of_admission of controller/history/reasons.py"
    more = admit(view, 2.0)
    assert (f"{more} more may start" if more > 0 else "none may start") in found.rule


@pytest.mark.parametrize("name", MIGRATIONS)
def test_instances_that_lose_a_response_are_called_so(name):
    dice, migrate = random.Random(name), MIGRATIONS[name]
    for _ in range(100):
        instances, knobs = list(views(dice, 3)), settings(dice)
        running, number = {}, 0
        for one in instances:
            running[one.id] = [
                RunningView(number + k, 100, 800, 2, 1, 90) for k in range(one.running)
            ]  # fmt: skip
            number += one.running
        moves = {*migrate(instances, running, knobs)}
        found = reasons.of_migration(migrate, instances, running, knobs)
        leaving = {i for i, rows in running.items() if any(row.id in moves for row in rows)}
        assert {one.id for one in found.candidates if one.is_chosen} == leaving


def test_a_filter_names_the_rewards():
    assert "all are equal" in reasons.of_filter(FILTERS["zero_variance"], [1.0, 1.0]).rule
    assert "kept" in reasons.of_filter(FILTERS["zero_variance"], [0.0, 1.0]).rule


def test_a_rule_of_the_users_has_no_reasons_here():
    assert reasons.of_routing(lambda *_: None, None, [], Settings()) is None
    assert reasons.of_admission(lambda *_: 1, AdmissionView(0, 1, 0, 0, 0, 0, 0), 1) is None
    assert reasons.of_synchronization(lambda *_: [], [], Settings()) is None
    assert reasons.of_migration(lambda *_: [], [], {}, Settings()) is None
    assert reasons.of_filter(lambda rewards: True, [1.0]) is None
