"""A held-out response that has begun under newer weights than any instance has left goes on all the same."""

from controller.core.commands import Finish, ReportEvaluation
from controller.core.events import HeldOutRead
from controller.core.state.groups import FIRST_EVALUATION_GROUP as FIRST
from protocol import messages
from protocol.messages import Attach
from tests.support.core_run import Run

LAZY = {"max_staleness": 3, "mu": 0.0, "synchronization": "every_few", "sync_steps": 9}


class Begun(Run):
    """The run has made its steps; one instance stayed at version 0, another one came at version 1, has given
    two tokens of a held-out response there, and left."""

    def __init__(self) -> None:
        self.reports: list[dict] = []
        self.is_over = False
        super().__init__(
            rollout={"instances": 1, "group_size": 1, "max_response_tokens": 10},
            trainer={"batch_groups": 1},
            evaluation={"every_steps": 9, "at_end": False, "exact": False, "share": 0.5,
                        "samples": 2, "data": {"test": {"path": "-"}}},
            staleness=LAZY,
        )  # fmt: skip
        self.training = self.start_groups()
        self.do(HeldOutRead(FIRST, ("test",), "digest"))
        self.make(1)
        self.say("late", Attach("rollout", "late", 2, "here"))
        self.say("late", messages.Ready(0, 4, 1000))
        self.say("late", messages.Pulled(1, "d1", 0.1))
        self.say("reward-0", messages.PromptsEncoded(((FIRST, 3),), ()))
        routes = {c.peer: c.message for c in self.commands if hasattr(c, "peer")}
        assert routes.keys() == {"rollout-0", "late"}
        self.generate(routes["rollout-0"], 4)
        self.generate(routes["late"], 2, "", version=1, peer="late")
        self.make(2)
        self.say("trainer", messages.CheckpointSaved(2, "checkpoints/step_2"))
        self.say("late", messages.Detach("preempted"))

    def make(self, version):
        """The next group becomes this version."""
        self.generate(self.training.pop(0), 4)
        (score,) = self.sent(messages.Score)
        self.say("reward-0", messages.GroupScored(score.group, score.attempt, (1.0,)))
        self.say("trainer", messages.TrainStepFinished(version, 0.1, ()))
        self.say("trainer", messages.PolicyPublished(version, f"v{version}", f"d{version}", 1, 0.1))

    def do(self, event, at=None):
        commands = super().do(event, at)
        self.reports += [c.metrics for c in commands if isinstance(c, ReportEvaluation)]
        self.is_over |= any(isinstance(c, Finish) for c in commands)
        return commands


def test_an_instance_that_stayed_behind_pulls_what_the_last_evaluation_needs():
    run = Begun()
    assert run.core.state.ending is not None
    assert [pull.policy_version for pull in run.sent(messages.Pull)] == [2]
    (route,) = run.sent(messages.Route)
    assert route.segments == ((1, 1, 2),)
    run.say("rollout-0", messages.Pulled(2, "d2", 0.1))
    run.generate(route, 3, version=2)
    (score,) = run.sent(messages.Score)
    run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    assert [report["policy_version"] for report in run.reports] == [0]
    assert run.is_over
