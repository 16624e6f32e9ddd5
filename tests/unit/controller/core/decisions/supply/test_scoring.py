"""Groups that wait for their scores: whose turn it is, and how many each reward worker gets at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.commands import Send
from controller.core.decisions.supply.scoring import ScoreQueue
from controller.core.events import PromptsRead
from controller.core.state.groups import FIRST_EVALUATION_GROUP as HELD_OUT
from protocol import messages
from tests.support.core_run import Run

ROLLOUT = {"instances": 1, "group_size": 1, "max_response_tokens": 10, "max_running": 4}


class Shares(Run):
    """One instance, whose responses all end at once, and reward workers that say what they can."""

    def __init__(self, groups: int, *, capacity: int) -> None:
        super().__init__(rollout=ROLLOUT, trainer={"batch_groups": 64})
        self.given: dict[str, list[messages.Score]] = {}
        self.say("reward-0", messages.Detach("Another one comes."))
        self.join("reward-1", capacity)
        routes = self.start_groups_of(groups)
        while routes:
            said = [messages.Delta(r.group, r.member, r.attempt, 0, 1, 0, "stop") for r in routes]
            self.say("rollout-0", messages.Generated.of(tuple(said)))
            routes = self.sent(messages.Route)

    def start_groups_of(self, groups: int) -> list[messages.Route]:
        self.do(PromptsRead(0, groups, True))
        self.say("reward-1", messages.PromptsEncoded(tuple((g, 3) for g in range(groups)), ()))
        routes = self.sent(messages.Route)
        self.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        return [*routes, *self.sent(messages.Route)]

    def join(self, name: str, capacity: int) -> None:
        self.say(name, messages.Attach("reward", name, 1, "here"))
        self.say(name, messages.Ready(0, capacity, 0))

    def do(self, event, at=None):
        commands = super().do(event, at)
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, messages.Score):
                self.given.setdefault(command.peer, []).append(command.message)
        return commands

    def answer(self, name: str) -> None:
        score = self.given[name].pop(0)
        self.say(name, messages.GroupScored(score.group, score.attempt, (0.5,)))

    def counts(self) -> dict[str, int]:
        return {name: len(scores) for name, scores in self.given.items()}


def test_a_worker_is_given_twice_what_it_scores_at_once_and_the_rest_waits_for_whoever_is_free():
    run = Shares(40, capacity=8)
    assert run.counts() == {"reward-1": 16}
    run.join("reward-2", 8)  # it comes late, and finds work
    assert run.counts() == {"reward-1": 16, "reward-2": 16}
    for _ in range(5):
        run.answer("reward-2")
    assert run.counts() == {"reward-1": 16, "reward-2": 16}
    assert run.core.state.registry.workers["reward-2"].pending == 16


def test_a_worker_that_scores_one_at_a_time_still_has_the_next_ones_at_hand():
    assert Shares(40, capacity=1).counts() == {"reward-1": 4}


def test_a_worker_of_more_processes_gets_its_larger_share():
    run = Shares(9, capacity=2)
    run.join("reward-2", 16)
    assert run.counts() == {"reward-1": 4, "reward-2": 5}


def test_one_that_says_nothing_of_what_it_can_is_given_all():
    assert Shares(40, capacity=0).counts() == {"reward-1": 40}


def test_what_a_lost_worker_had_goes_to_the_others_as_far_as_they_have_room():
    run = Shares(40, capacity=8)
    run.join("reward-2", 8)
    run.say("reward-1", messages.Detach("It leaves."))
    assert run.counts()["reward-2"] == 16
    for _ in range(40 - 16):
        run.answer("reward-2")
    assert run.counts()["reward-2"] == 16  # the 16 of the lost one among them: all 40 were asked of it


def queue_of(*groups: int) -> ScoreQueue:
    queue = ScoreQueue()
    for group in groups:
        queue.append(group)
    return queue


def taken(queue: ScoreQueue) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


def test_a_large_evaluation_lets_training_groups_take_turns():
    queue = queue_of(*range(HELD_OUT, HELD_OUT + 4), 7, 5)
    assert queue.first() == 7
    assert taken(queue) == [7, HELD_OUT, 5, HELD_OUT + 1, HELD_OUT + 2, HELD_OUT + 3]


def test_one_kind_alone_keeps_its_order():
    assert taken(queue_of(3, 1, 2)) == [3, 1, 2]
    assert taken(queue_of(HELD_OUT + 1, HELD_OUT)) == [HELD_OUT + 1, HELD_OUT]


def test_what_a_lost_worker_had_is_ordered_by_number():
    queue = queue_of(4, 2, HELD_OUT + 3)
    queue.put_back([3, HELD_OUT + 1, 2])
    assert [*queue] == [2, 3, 4, HELD_OUT + 1, HELD_OUT + 3]
    assert taken(queue) == [2, HELD_OUT + 1, 3, HELD_OUT + 3, 4]


def test_an_empty_queue_has_no_first():
    with pytest.raises(IndexError):
        ScoreQueue().first()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_no_group_is_lost_or_doubled_and_no_kind_waits_for_more_than_one_of_the_other(said):
    queue, there, held_back = ScoreQueue(), set(), {True: 0, False: 0}
    for number, (is_added, is_held_out) in enumerate(said):
        if is_added:
            group = number + HELD_OUT * is_held_out
            queue.append(group)
            there.add(group)
        elif there:
            kinds = {one >= HELD_OUT for one in there}
            group = queue.pop()
            there.remove(group)
            kind = group >= HELD_OUT
            held_back[kind] = 0
            held_back[not kind] = held_back[not kind] + 1 if len(kinds) == 2 else 0
            assert max(held_back.values()) <= 1
    assert sorted(queue) == sorted(there)
