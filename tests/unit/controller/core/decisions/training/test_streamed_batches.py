"""Batches that the trainer begins before they are complete: what is sent ahead, and where that is refused."""

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.config.strategies import load_strategies
from controller.core.events import PromptsRead, WorkerExited
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from protocol import messages
from protocol.algorithms import ALGORITHMS
from protocol.messages import Attach, Train, TrainAhead, TrainedAhead
from tests.support.core_run import Run

EXACT = {"grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo"}


def started(groups=3, **sections) -> tuple[Run, dict[int, list[messages.Route]]]:
    """A run with a batch of three groups under way, and its routes by group."""
    trainer = {"batch_groups": 3, "streaming": True, **sections.pop("trainer", {})}
    run = Run(
        trainer=trainer, rollout={"group_size": 1, "max_response_tokens": 10, "max_running": 8}, **sections
    )
    run.do(PromptsRead(0, groups, False))
    run.say("reward-0", messages.PromptsEncoded(tuple((g, 3) for g in range(groups)), ()))
    routes = run.sent(messages.Route)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    by_group: dict[int, list[messages.Route]] = {}
    for route in [*routes, *run.sent(messages.Route)]:
        by_group.setdefault(route.group, []).append(route)
    return run, by_group


def complete(run: Run, routes: list[messages.Route]) -> None:
    """A group is generated and scored."""
    for route in routes:
        run.generate(route, 4)
    (score,) = run.sent(messages.Score)
    run.say("reward-0", messages.GroupScored(score.group, score.attempt, (1.0,)))


def groups_of(message: Train | TrainAhead) -> list[int]:
    return sorted({item.group for item in message.items})


def test_certain_groups_go_ahead_one_order_at_a_time_and_the_last_brings_the_step():
    run, routes = started()
    complete(run, routes[1])
    (ahead,) = run.sent(TrainAhead)
    assert (ahead.train_version, groups_of(ahead)) == (0, [1])
    assert run.core.training.trainer_batches.making is not None
    assert [w.working_on for w in run.core.snapshot().workers if w.role == "trainer"] == [
        "training version 1"
    ]
    complete(run, routes[2])
    assert not run.sent(TrainAhead)  # the trainer has one in hand
    run.say("trainer", TrainedAhead(0))
    (second,) = run.sent(TrainAhead)
    assert groups_of(second) == [2]
    complete(run, routes[0])
    (train,) = run.sent(Train)
    assert [item.group for item in train.items] == [1, 2, 0]
    assert train.ahead == 2
    assert [[piece.group for piece in frame] for frame in train.outgoing_payload()] == [[0]] * 3
    run.say("trainer", TrainedAhead(0))
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    assert run.core.state.steps == 1
    assert run.core.training.trainer_batches.making is None


def test_without_streaming_nothing_goes_ahead():
    run, routes = started(trainer={"streaming": False})
    for group in (1, 2, 0):
        complete(run, routes[group])
        assert not run.sent(TrainAhead)
    (train,) = run.sent(Train)
    assert train.ahead == 0


def test_the_last_group_of_a_batch_is_never_sent_ahead():
    run, routes = started(trainer={"batch_groups": 1})
    complete(run, routes[0])
    assert not run.sent(TrainAhead)
    assert [train.ahead for train in run.sent(Train)] == [0]


def test_a_group_that_others_may_displace_waits():
    run, routes = started(groups=4, trainer={"batch_groups": 2}, staleness={"max_staleness": 1, "mu": 0.0})
    ledger = run.core.state.ledger
    assert ledger.reserved == 4
    complete(run, routes[0])
    assert len(run.sent(TrainAhead)) == 1
    assert ledger.deadline(0) == ledger.train_version == 0
    assert ledger.deadline(1) == 1


@pytest.mark.parametrize("dies_with", ["a part", "the batch"])
def test_the_next_trainer_gets_the_whole_batch(dies_with):
    run, routes = started()
    complete(run, routes[1])
    if dies_with == "the batch":
        run.say("trainer", TrainedAhead(0))
        complete(run, routes[0])
        run.say("trainer", TrainedAhead(0))
        complete(run, routes[2])
        assert run.sent(Train)
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", messages.Ready(0, 0, 0))
    if dies_with == "the batch":
        (train,) = run.sent(Train)
        assert (train.ahead, groups_of(train)) == (0, [0, 1, 2])
    else:
        (ahead,) = run.sent(TrainAhead)  # what was certain once is certain for good
        assert groups_of(ahead) == [1]
        complete(run, routes[0])
        complete(run, routes[2])
        (train,) = run.sent(Train)
        assert (train.ahead, groups_of(train)) == (1, [0, 1, 2])


def test_a_core_that_was_frozen_amid_a_batch_goes_on_alike():
    run, routes = started()
    complete(run, routes[1])
    image = Freezer().freeze(run.core)
    again = thaw(image, load_strategies(run.config))
    assert again.training.trainer_batches.ahead == [1]
    assert Freezer().freeze(again) == image
    run.core = again
    complete(run, routes[2])
    complete(run, routes[0])
    (train,) = run.sent(Train)
    assert (train.ahead, groups_of(train)) == (1, [0, 1, 2])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_that_look_at_the_whole_batch_are_refused(name):
    config = Config.model_validate({"trainer": {"algorithm": name, "streaming": True}})
    assert (cross_field_problems(config) == []) == (name in EXACT)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"algorithm": "reinforce"}}, "mean over the batch"),
        ({"trainer": {"algorithm": "ppo", "advantage_scale": "none"}}, "critic"),
        ({"trainer": {"algorithm": "reinforce_pp"}}, "deviation over the batch"),
        ({"trainer": {"minibatches": 2}}, "weights that the one before has changed"),
        ({"trainer": {"algorithm": "sft"}}, "responses are all there from the start"),
        ({"staleness": {"spare_groups": 2}}, "no batch waits for a straggler"),
        ({"staleness": {"ledger": "arrival"}}, "wait for no straggler"),
    ],
)
def test_a_refusal_says_what_makes_it_inexact_or_pointless(sections, words):
    sections = {**sections, "trainer": {"streaming": True, **sections.get("trainer", {})}}
    problems = cross_field_problems(Config.model_validate(sections))
    texts = [text for fields, text in problems if fields[0] == "trainer.streaming"]
    assert any(words in text for text in texts), problems
