"""A version that went with its trainer is awaited until the successor has published it again."""

from protocol import messages
from protocol.messages import Attach, Close
from tests.support.core_run import Run


def test_nobody_is_closed_who_cannot_pull_what_was_made_again_and_is_not_published_yet():
    run = Run(trainer={"batch_groups": 1, "local": False, "checkpoint_steps": 0})
    for route in run.start_groups(2)[:2]:
        run.generate(route, 4)
    run.say("reward-0", messages.GroupScored(0, 1, (0.0, 1.0)))
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.publish(1)
    run.say("trainer", messages.Detach("it is preempted"))
    run.say("next", Attach("trainer", "trainer", 2, "here"))
    run.say("next", messages.Ready(0, 0, 0))
    run.say("next", messages.PolicyPublished(0, "v", "digest", 1, 0.1))
    run.say("next", messages.TrainStepFinished(1, 0.5, ()))
    for _ in range(3):
        run.say("rollout-0", messages.PullFailed(1, "it is not there"))
        assert not run.sent(Close)
        assert not run.sent(messages.Pull), "it waits until that is there again"
        if run.core.state.versions.state(1) == "lost":
            break
    assert run.core.state.versions.state(1) == "lost"
    run.say("next", messages.PolicyPublished(1, "w", "digest2", 1, 0.1))
    assert run.sent(messages.Pull)
