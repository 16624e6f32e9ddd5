"""Which call of a process of the reward function is to blame when it ends."""

import asyncio

import pytest

from workers.reward.child import TRIES_ALONE, AskAgain, Call, CallLimits, RewardChild, ScoringFailed


def settled(*calls, earlier=0, tries=1):
    """What becomes of calls that are in a process when it is ended, each (has begun, is alone).

    `earlier`: calls that the process has answered before them; `tries`: times that they were asked alone.
    """

    async def settle():
        loop = asyncio.get_running_loop()
        child = RewardChild(CallLimits(9.0, 1.0), setup=b"", on_answer=list, on_gone=lambda child: None)
        made = [
            Call((), 1, loop.create_future(), has_begun=has_begun, is_alone=is_alone, tries_alone=tries)
            for has_begun, is_alone in calls
        ]
        child.calls, child._asked = dict(enumerate(made)), len(made) + earlier
        child.reason, child._is_ending = "It was killed.", True
        child._settled()
        return [call.answer.exception() for call in made]

    return asyncio.run(settle())


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_call_that_had_not_begun_is_asked_again_alone(earlier):
    """Something that an earlier call left behind may block the loop of the process, or end it."""
    (again,) = settled((False, False), earlier=earlier)
    assert isinstance(again, AskAgain)
    assert again.is_alone


def test_a_call_that_could_not_begin_alone_where_another_had_been_is_asked_again():
    (again,) = settled((False, True), earlier=1, tries=TRIES_ALONE - 1)
    assert isinstance(again, AskAgain)
    assert again.is_alone
    (failed,) = settled((False, True), earlier=1, tries=TRIES_ALONE)
    assert isinstance(failed, ScoringFailed), "it is not asked for ever"


@pytest.mark.parametrize("call", [(True, False), (True, True), (False, True)])
def test_the_only_call_that_had_begun_or_could_not_begin_alone_has_failed(call):
    (failed,) = settled(call)
    assert isinstance(failed, ScoringFailed)
    assert str(failed) == "It was killed."


def test_of_several_calls_the_one_that_had_begun_has_failed_and_the_others_are_asked_again():
    failed, again = settled((True, False), (False, False))
    assert isinstance(failed, ScoringFailed)
    assert isinstance(again, AskAgain)
    assert not again.is_alone
