"""An exact evaluation whose version is gone is given up, instead of holding the run up for ever."""

from controller.core.events import PromptsRead, Restarted
from protocol import messages
from tests.unit.controller.core.decisions.evaluation.test_evaluation_placement import Evaluated


class Interrupted(Evaluated):
    """Version 0 is under evaluation while version 1 is made; then its instance leaves, and the controller is
    started again."""

    def __init__(self, *, is_left: bool = True) -> None:
        super().__init__(
            prompts=1, at_end=False, sections={"run": {"steps": 2}, "trainer": {"batch_groups": 1}}
        )
        self.encode()
        self.do(PromptsRead(0, 1, True))
        self.say("reward-0", messages.PromptsEncoded(((0, 3),), ()))
        for route in self.sent(messages.Route):
            self.end(route)
        (score,) = self.scores()
        self.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
        assert self.sent(messages.Train)
        self.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
        self.say("trainer", messages.PolicyPublished(1, "w", "digest", 1, 0.1))
        if is_left:
            self.say("rollout-0", messages.Detach("preempted"))
        self.do(Restarted(self.core.state.config.model_dump_json(), "elsewhere", ()))
        self.say("trainer-again", messages.Attach("trainer", "trainer", 2, "here"))

    def show(self, version: int, location: str) -> None:
        self.say("trainer-again", messages.PolicyPublished(version, location, "digest", 1, 0.1))


def test_a_version_that_the_next_trainer_will_not_show_is_given_up_by_name():
    run = Interrupted()
    run.say("trainer-again", messages.Ready(1, 0, 0))
    (line,) = run.reports()
    assert (line["policy_version"], line["failed"]) == (0, 1)
    assert "version 0 was lost with its trainer" in line["failures"][0]


def test_a_version_that_the_next_trainer_begins_at_is_shown_again_behind_newer_ones():
    run = Interrupted()
    run.show(1, "w")  # it has outlived the trainer before this one
    run.say("trainer-again", messages.Ready(0, 0, 0))
    assert not run.reports()
    run.show(0, "v")
    assert not run.sent(messages.Retire)
    run.attach("rollout-9", "rollout")
    assert [pull.policy_version for pull in run.sent(messages.Pull)] == [0]
    assert not run.reports()


def test_a_version_that_an_instance_may_come_back_with_is_given_up_when_it_does_not():
    run = Interrupted(is_left=False)
    run.say("trainer-again", messages.Ready(1, 0, 0))
    assert not run.reports()
    reports = []
    while not reports and run.now < 60:
        run.say("trainer-again", messages.Beat(), at=run.now + 1)
        reports += run.reports()
    assert "version 0 was lost with its trainer" in reports[0]["failures"][0]
