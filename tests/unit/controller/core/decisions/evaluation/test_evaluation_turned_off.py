"""A run that goes on without evaluation: one that has its prompts ends, and no other begins."""

import pytest

from controller.config.models import Config
from controller.core.events import HeldOutRead, Restarted
from controller.core.state.groups import FIRST_EVALUATION_GROUP as FIRST
from protocol import messages
from tests.support.core_run import Run

EVALUATION = {"every_steps": 1, "samples": 1, "data": {"test": {"path": "-"}}}


def off(config: Config) -> str:
    evaluation = config.evaluation.model_copy(update={"every_steps": 0, "data": {}})
    return config.model_copy(update={"evaluation": evaluation}).model_dump_json()


@pytest.mark.parametrize("is_read", [True, False])
def test_an_evaluation_without_prompts_is_not_reported_when_evaluation_is_turned_off(is_read):
    run = Run(evaluation=EVALUATION)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    if is_read:
        run.do(HeldOutRead(FIRST, ("test",), "digest"))
    run.publish(1)
    assert run.core.evaluation.pending == 1
    run.do(Restarted(off(run.config), "", ()))
    assert run.core.evaluation.pending is None
    if is_read:
        run.attach("reward-1", "reward")
        run.say("reward-1", messages.PromptsEncoded((), ((FIRST, "too long"),)))
    assert [line["prompts"] + line["failed"] for line in run.core.evaluation.reports] == [1] * is_read
    assert run.core.evaluation.round is None
