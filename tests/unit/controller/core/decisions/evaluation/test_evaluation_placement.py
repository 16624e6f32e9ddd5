"""Evaluations, event by event: what is placed where, and what failures come to."""

import pytest

from controller.core.commands import Finish, ReadHeldOut, ReadPrompts, ReportEvaluation, Warn
from controller.core.events import HeldOutRead, PromptsRead, StopRequested
from controller.core.state.groups import FIRST_EVALUATION_GROUP as FIRST
from protocol import messages
from protocol.messages import Delta, Generated
from tests.support.core_run import Run

DATA = {"test": {"path": "-"}}


class Evaluated(Run):
    """A run whose version 0 is being evaluated over two prompts, with two samples each."""

    def __init__(self, *, prompts=2, sections=None, **evaluation) -> None:
        evaluation = {"every_steps": 1, "samples": 2, "data": DATA, "share": 1.0, **evaluation}
        super().__init__(evaluation=evaluation, **(sections or {}))
        assert [c for c in self.commands if isinstance(c, ReadHeldOut)] == [ReadHeldOut(FIRST)]
        self.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        self.do(HeldOutRead(FIRST, tuple("ab"[n % 2] for n in range(prompts)), "digest"))

    def encode(self):
        groups = self.sent(messages.Encode)[0].groups
        return self.say("reward-0", messages.PromptsEncoded(tuple((g, 3) for g in groups), ()))

    def end(self, route, version=0, count=5):
        delta = Delta(route.group, route.member, route.attempt, 0, count, version, "stop")
        return self.say("rollout-0", Generated.of((delta,)))

    def reports(self):
        return [c.metrics for c in self.commands if isinstance(c, ReportEvaluation)]

    def scores(self):
        return self.sent(messages.Score)


def test_held_out_prompts_are_routed_scored_and_reported_without_a_place_in_the_ledger():
    run = Evaluated()
    run.encode()
    routes = run.sent(messages.Route)
    assert [(r.group - FIRST, r.member, r.is_evaluation) for r in routes] == [
        (0, 0, True), (0, 1, True), (1, 0, True), (1, 1, True),
    ]  # fmt: skip
    assert len(run.core.state.ledger) == 0
    assert run.core.snapshot().evaluating == "version 0: 0 of 2 prompts"
    assert run.core.snapshot().groups == {}
    for route in routes:
        run.end(route)
        for score in run.scores():
            assert score.is_evaluation
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (1.0, 0.0)))
    (line,) = run.reports()
    assert (line["policy_version"], line["pass@1"], line["pass@2"]) == (0, 0.5, 1.0)
    assert line["sources"].keys() == {"a", "b"}
    tokens = run.core.snapshot().tokens
    assert (tokens.generated, tokens.evaluated, tokens.in_flight) == (20, 20, 0)
    assert not run.core.state.groups


def test_the_noise_of_a_prompt_is_the_same_in_every_evaluation_and_no_two_samples_share_it():
    seeds = []
    for first in (FIRST, FIRST + 7):
        run = Evaluated()
        run.core.evaluation.round.first_group = first  # as if others had gone before
        for group in list(run.core.state.groups):
            run.core.state.groups[group + first - FIRST] = run.core.state.groups.pop(group)
            run.core.state.groups[group + first - FIRST].id = group + first - FIRST
        encoded = tuple((first + n, 3) for n in range(2))
        worker = run.core.state.registry.workers["reward-0"]
        worker.encoding = {group for group, _ in encoded}
        worker.told.encodes = [tuple(sorted(worker.encoding))]
        run.say("reward-0", messages.PromptsEncoded(encoded, ()))
        seeds.append([route.seed for route in run.sent(messages.Route)])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_a_prompt_that_cannot_be_encoded_is_named_and_the_rest_goes_on():
    run = Evaluated()
    first, second = run.sent(messages.Encode)[0].groups
    run.say("reward-0", messages.PromptsEncoded(((second, 3),), ((first, "it is empty"),)))
    for route in run.sent(messages.Route):
        assert route.group == second
        run.end(route)
    run.say("reward-0", messages.GroupScored(second, 1, (1.0, 1.0)))
    (line,) = run.reports()
    assert (line["prompts"], line["failed"], line["failures"]) == (1, 1, ["a, prompt 0: it is empty"])
    assert any(isinstance(c, Warn) and "prompt 0: it is empty" in c.text for c in run.commands)


def test_a_poisonous_prompt_is_scored_again_as_often_as_any_other_then_named_and_ends_nothing():
    run = Evaluated(prompts=1, sections={"reward": {"retries": 2, "max_consecutive_failures": 2}})
    run.encode()
    for route in run.sent(messages.Route):
        run.end(route)
    for attempt in (1, 2, 3):
        (score,) = run.scores()
        assert score.attempt == attempt
        run.say("reward-0", messages.ScoreFailed(score.group, attempt, "it raised", "{}"))
    (line,) = run.reports()
    assert (line["prompts"], line["failed"]) == (0, 1)
    assert "the reward failed: it raised" in line["failures"][0]
    assert run.core.state.ending is None
    assert run.core.snapshot().tokens.evaluated == 10


def test_a_prompt_that_no_engine_can_run_is_left_out_after_three_tries():
    run = Evaluated(prompts=1)
    run.encode()
    for _ in range(3):
        route = run.sent(messages.Route)[0]
        failed = messages.GenerationFailed(route.group, route.member, route.attempt, "context")
        run.say("rollout-0", failed)
    assert run.sent(messages.Abort)  # of its sibling
    (line,) = run.reports()
    assert "generation failed 3 times: context" in line["failures"][0]


def test_an_exact_evaluation_holds_its_instance_at_its_version_and_the_version_itself():
    run = Evaluated()
    run.encode()
    routes = run.sent(messages.Route)
    run.publish(1, "w", "digest")
    assert not run.sent(messages.Pull)
    assert not run.sent(messages.Retire)
    assert run.core.evaluation.pending == 1
    for route in routes:
        run.end(route)
    assert [pull.policy_version for pull in run.sent(messages.Pull)] == [1]
    assert run.core.state.registry.workers["rollout-0"].pulling == 1
    assert not run.sent(messages.Retire)  # until it is scored: a lost response would need it


def test_an_evaluation_that_is_not_exact_is_interrupted_and_goes_on_under_new_weights():
    run = Evaluated(exact=False)
    run.encode()
    route = run.sent(messages.Route)[0]
    run.publish(1, "w", "digest")
    assert len(run.sent(messages.Interrupt)[0].attempts) == 4
    assert run.sent(messages.Pull)[0].policy_version == 1
    run.say("rollout-0", Generated.of((Delta(route.group, 0, route.attempt, 0, 2, 0, "interrupt"),)))
    (again,) = run.sent(messages.Route)
    assert (again.group, again.attempt, again.max_new_tokens) == (route.group, 2, 8)
    assert again.segments == ((1, 0, 2),)
    assert again.seed == route.seed


def test_an_exact_evaluation_whose_version_is_lost_with_its_instance_is_pulled_again_by_another():
    run = Evaluated(prompts=1)
    run.encode()
    run.publish(1, "w", "digest")
    run.say("rollout-0", messages.Detach("preempted"))
    run.attach("rollout-1", "rollout")
    (pull,) = run.sent(messages.Pull)
    assert pull.policy_version == 0
    assert len(run.sent(messages.Route)) == 2  # behind the pull


def test_an_exact_evaluation_whose_version_cannot_be_had_any_more_is_given_up_by_name():
    run = Evaluated(prompts=1)
    run.encode()
    run.publish(1, "w", "digest")
    run.say("rollout-0", messages.Detach("preempted"))
    run.attach("rollout-1", "rollout")
    run.say("rollout-1", messages.PullFailed(0, "no such file"))
    assert run.reports() == [], "it may have been the network"
    run.say("rollout-1", messages.PullFailed(0, "no such file"))
    (line,) = run.reports()
    assert (line["failed"], line["prompts"]) == (1, 0)
    assert "version 0 could not be pulled: no such file" in line["failures"][0]
    assert [pull.policy_version for pull in run.sent(messages.Pull)] == [1]


def overtaken():
    """Version 0 is evaluated on rollout-0, and rollout-1 was about to pull it when version 1 came out."""
    run = Evaluated(prompts=1)
    run.encode()
    run.attach("rollout-1", "rollout")
    assert [pull.policy_version for pull in run.sent(messages.Pull)] == [0]
    run.publish(1, "w", "digest")
    return run


def test_a_failed_pull_does_not_end_an_evaluation_that_another_instance_answers():
    run = overtaken()
    run.say("rollout-1", messages.PullFailed(0, "connection reset"))
    assert run.reports() == []
    assert run.core.evaluation.in_words() == "version 0: 0 of 1 prompts"


def test_rows_that_nobody_asked_for_are_dropped():
    run = Evaluated()
    run.do(HeldOutRead(FIRST + 100, ("a",), "digest"))
    assert not any(group >= FIRST + 100 for group in run.core.state.groups)


def test_prompts_of_training_are_read_ahead_as_if_there_were_no_evaluation():
    run = Evaluated(prompts=60)
    run.do(PromptsRead(0, 10, False))
    assert [c for c in run.commands if isinstance(c, ReadPrompts)] == [ReadPrompts(54)]


@pytest.mark.parametrize("at_end", [True, False])
def test_a_stopped_run_does_not_wait_for_an_evaluation(at_end):
    run = Evaluated(at_end=at_end)
    run.encode()
    run.do(StopRequested("enough"))
    assert run.sent(messages.Abort)
    assert [c for c in run.commands if isinstance(c, Finish)] == [Finish(True, "enough")]
