"""Of which groups a trainer is asked for logprobs and weights, and what it may answer."""

from dataclasses import replace

import pytest

from controller.core.commands import KeepSamples
from controller.core.events import WorkerExited
from controller.core.state import kept_samples
from controller.core.state.kept_samples import asked_groups, kept_groups
from protocol import messages
from tests.support.core_run import Run
from tests.unit.controller.core.decisions.training.test_trainer_batches import another_trainer, of, one_step
from tests.unit.controller.core.state.test_kept_samples import BATCH


def a_train(**sections) -> tuple[Run, messages.Train]:
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5}, **sections)
    return run, one_step(run)


def finished(train: messages.Train, *groups: int) -> messages.TrainStepFinished:
    places = tuple((i.group, i.member, i.sampled_tokens) for i in train.items if i.group in groups)
    return messages.TrainStepFinished(train.train_version + 1, 0.5, (), places)


def test_the_groups_that_will_be_kept_are_asked_for():
    run, train = a_train(samples={"groups": 1})
    run.say("trainer", finished(train, *train.samples))
    (kept,) = of(run, KeepSamples)
    assert [group.group for group in kept.groups] == list(train.samples)
    assert len(train.samples) == 1


def test_nobody_is_asked_where_nothing_is_kept():
    _, train = a_train(samples={"groups": 0})
    assert train.samples == ()


def test_a_step_that_is_made_again_is_asked_for_only_while_its_groups_are_there():
    run, first = a_train()
    another_trainer(run, 0)
    (again,) = run.sent(messages.Train)
    assert again == first
    run.say("second", finished(again, *again.samples))
    run.say("second", messages.PolicyPublished(1, "/v1", "d", 1, 0.1))
    run.do(WorkerExited("trainer", "second", -9, ""))
    run.say("third", messages.Attach("trainer", "trainer", 3, "here"))
    run.say("third", messages.Ready(0, 0, 0))
    (redone,) = run.sent(messages.Train)
    assert redone.items == first.items
    assert redone.samples == ()


@pytest.mark.parametrize(
    "lie",
    [
        lambda places: (*places, places[0]),
        lambda places: ((*places[0][:2], places[0][2] + 1),),
        lambda places: ((99, 0, 4),),
    ],
)
def test_what_is_not_of_the_batch_ends_the_trainer_and_its_frames_are_not_kept(lie):
    run, train = a_train()
    honest = finished(train, *train.samples)
    liar = replace(honest, corrected=lie(honest.corrected))
    assert run.core.keeps_payload("trainer", honest)
    assert not run.core.keeps_payload("trainer", liar)
    assert not run.core.keeps_payload("rollout-0", honest)
    run.say("trainer", liar)
    assert [close for close in run.sent(messages.Close) if "expected each of the batch once" in close.reason]


def test_a_report_has_room_for_so_many_tokens_and_smaller_groups_come_instead(monkeypatch):
    monkeypatch.setattr(kept_samples, "MOST_TOKENS", 5)
    items = [
        messages.TrainItem(group.id, i, 3, 0.0, 0.0, "stop", (messages.Segment(1, 5, size),))
        for group in BATCH
        for size in (9 if group.id == 2 else 2,)
        for i in range(2)
    ]  # fmt: skip
    kept = [
        one._replace(items=tuple(item for item in items if item.group == one.group))
        for one in kept_groups(BATCH, count=6, step=7, seed=0)
    ]
    assert len(kept) == len(BATCH)
    assert asked_groups(kept) == (3,)
    assert asked_groups(()) == ()
