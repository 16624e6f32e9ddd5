"""What passes the plausibility check: late words of honest workers; and what follows from a refusal."""

import math
from dataclasses import fields

import pytest

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Finish, Forget, ReportStep, Warn
from controller.core.core import Core
from controller.core.decisions.workers.plausibility import COUNTERS
from controller.core.events import PeerFaulted, PromptsRead, Started, Tick
from protocol import messages
from protocol.messages import MAX_REWARD, Attach, Beat, Delta, Generated
from tests.support.core_run import Run

OF_NOW = {
    "sequence", "policy_version", "running", "waiting", "resident_tokens", "queued", "parked_tokens",
}  # fmt: skip
"""Fields of an instance's report that say how it is now, and may fall; the others are totals of its life."""


def test_every_total_of_a_report_is_held_against_the_report_before():
    totals = {field.name for field in fields(messages.InstanceStatus)} - OF_NOW
    assert totals == set(COUNTERS), (
        f"{totals ^ set(COUNTERS)}: name a new total of InstanceStatus in COUNTERS of "
        "controller/core/decisions/workers/plausibility.py, and what may fall in OF_NOW here"
    )


def is_closed(run: Run) -> bool:
    return any(close.is_fault for close in run.sent(messages.Close))


def call_off(run: Run, route: messages.Route) -> None:
    """The group of a route is given up, which nobody has asked for."""
    group = run.core.state.groups[route.group]
    run.core.purposes.of(group).on_failed(group, "for the test")
    run.core.state.take_commands()
    run.say("reward-0", Beat())


def delta(route, *, start=0, count=1, version=0, ending="") -> Generated:
    return Generated.of((Delta(route.group, route.member, route.attempt, start, count, version, ending),))


def test_late_words_of_what_was_called_off_are_honest_and_change_nothing():
    run = Run()
    routes = run.start_groups()
    first = routes[0]
    run.generate(first, 2, ending="")
    call_off(run, first)
    before = run.core.state.accounts.lost
    for start, ending in ((2, ""), (3, "stop")):
        run.say("rollout-0", delta(first, start=start, ending=ending))
        assert not is_closed(run)
    run.say("rollout-0", messages.GenerationFailed(first.group, 1, routes[1].attempt, "late"))
    assert not is_closed(run)
    assert run.core.state.accounts.lost == before + 2
    run.say("rollout-0", delta(first, start=4))  # it has ended
    assert is_closed(run)


def test_who_has_answered_a_later_order_says_no_more_of_an_earlier_one():
    run = Run()
    routes = run.start_groups(3)
    first, told = routes[0], run.core.state.registry.workers["rollout-0"].told
    call_off(run, first)
    assert told.knows((first.group, first.member, first.attempt))
    (behind, *_) = run.sent(messages.Route)  # sent behind the Abort, into the place that it has freed
    run.generate(behind, 1, ending="")
    assert not told.called_off
    run.say("rollout-0", delta(first))
    assert is_closed(run)


def test_a_report_that_tells_of_both_is_heard_as_one():
    run = Run()
    first, *_ = run.start_groups(3)
    told = run.core.state.registry.workers["rollout-0"].told
    call_off(run, first)
    (behind, *_) = run.sent(messages.Route)
    rows = [(each.group, each.member, each.attempt, 0, 1, 0, "") for each in (behind, first)]
    run.say("rollout-0", Generated.of(tuple(Delta(*row) for row in rows)))
    assert not told.called_off


def test_what_an_instance_was_to_generate_under_weights_that_did_not_come_is_late():
    run = Run()
    routes = run.start_groups()
    run.publish(1)
    for route in routes:
        run.generate(route, 1, "interrupt")
    promised = run.sent(messages.Route)
    run.say("rollout-0", messages.PullFailed(1, "no such file"))
    assert not is_closed(run)
    for route in promised:  # it has gone on with the weights that it has
        run.say("rollout-0", delta(route, version=0))
        assert not is_closed(run)


def test_a_response_that_comes_back_whole_is_whole():
    run = Run()
    first = run.start_groups()[0]
    run.publish(1)
    run.generate(first, 10, "interrupt")
    assert not is_closed(run)
    assert run.core.state.groups[0].members[0].state == "finished"
    assert run.core.state.groups[0].members[0].ending == "length"


def test_an_instance_that_hands_back_what_nobody_asked_for_may_do_so_once_as_one_that_leaves():
    run = Run()
    first, second, *_ = run.start_groups()
    run.generate(first, 0, "interrupt")
    assert not is_closed(run)
    run.generate(second, 0, "interrupt")
    assert is_closed(run)


def step_with(*rewards: float, metrics=(), parts=(), **sections) -> Run:
    """A run after its first train step, with these rewards in each group."""
    run = Run(**sections)
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, rewards, parts))
    run.say("trainer", messages.TrainStepFinished(1, 0.5, tuple(metrics)))
    return run


def line_of(run: Run) -> dict[str, object]:
    return next(c.metrics for c in run.commands if isinstance(c, ReportStep))


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "dr_grpo"])
def test_the_largest_rewards_overflow_nothing(algorithm):
    run = step_with(MAX_REWARD, -MAX_REWARD, trainer={"batch_groups": 2, "algorithm": algorithm})
    line = line_of(run)
    assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
    assert line["reward/std"] == MAX_REWARD


def test_the_controllers_own_figures_stand_whatever_a_loss_calls_its_metrics():
    own = step_with(0.0, 1.0)
    named = {"step": -1.0, "policy_version": 9.0, "reward/mean": 7.0, "tokens/trained": 1.0, "time_s": 0.0}
    named |= {"staleness/cap": 0.5, "cost_model/error": 0.5, "idle/trainer": 0.5, "trainer/step": 3.0}
    run = step_with(0.0, 1.0, metrics=[*named.items(), ("loss", 0.25)])
    line, expected = line_of(run), line_of(own)
    assert {name: line[name] for name in expected} == expected
    assert line["loss"] == 0.25
    assert line["trainer/reward/mean"] == 7.0
    assert line["trainer/staleness/cap"] == 0.5
    assert {line["trainer/step"], line["trainer/trainer/step"]} == {3.0, -1.0}
    assert not [c.text for c in run.commands if isinstance(c, Warn)]


def fail_pulls(
    run: Run, peer: str, times: int, *, version: int = 0, is_unreachable: bool = False
) -> list[str]:
    """Pulls that fail; returns who was forgotten because of it."""
    gone = []
    for _ in range(times):
        while run.core.state.versions.rests.has(peer, version):
            run.now += 2.0
            for worker in list(run.core.state.registry.workers):
                run.say(worker, messages.Beat())
        run.say(peer, messages.PullFailed(version, "its checksum is wrong", is_unreachable))
        gone += [c.peer for c in run.commands if isinstance(c, Forget)]
    return gone


def test_an_instance_that_cannot_pull_what_others_can_is_closed():
    run = Run(instances=2)
    run.say("rollout-1", messages.Pulled(0, "digest", 0.1))
    assert fail_pulls(run, "rollout-0", 3) == ["rollout-0"]


def test_a_version_that_nobody_can_pull_is_the_fault_of_who_has_published_it():
    run = Run(instances=2)
    assert fail_pulls(run, "rollout-0", 2) == []
    assert fail_pulls(run, "rollout-1", 2) == []
    assert fail_pulls(run, "rollout-0", 1) == ["trainer"]
    text = next(c.text for c in run.commands if isinstance(c, Warn) and "was closed" in c.text)
    assert "trainer was closed: No instance could pull version 0, which it has published" in text


def test_where_a_network_is_down_nobody_is_closed():
    run = Run(instances=2, version=1)
    for peer in ("rollout-0", "rollout-0", "rollout-1", "rollout-1"):
        assert fail_pulls(run, peer, 1, version=1, is_unreachable=True) == []
    for _ in range(5):
        assert fail_pulls(run, "rollout-0", 1, version=1, is_unreachable=True) == []


def test_of_one_instance_it_cannot_be_told_and_the_instance_is_closed():
    run = Run()
    assert fail_pulls(run, "rollout-0", 3) == ["rollout-0"]


class Guests(Run):
    """A run whose workers come by themselves."""

    def __init__(self) -> None:
        self.config = Config.model_validate(
            {
                "run": {"steps": 2},
                "rollout": {"instances": 0, "group_size": 2, "max_response_tokens": 10},
                "reward": {"workers": 0},
                "trainer": {"batch_groups": 2, "local": False},
                "controller": {"replace_s": 30.0},
            }
        )
        self.core, self.now, self.commands = Core(self.config, load_strategies(self.config)), 0.0, []
        self.do(Started())
        for name, role in (("trainer", "trainer"), ("judge", "reward"), ("node", "rollout")):
            self.attach(name, role)

    def wait(self, seconds: float) -> None:
        """Everybody else stays alive."""
        until = self.now + seconds
        while self.now < until and not self.core.state.finished:
            for peer in list(self.core.state.registry.workers):
                self.say(peer, Beat())
            deadline = self.core.next_deadline()
            assert deadline is not None
            self.do(Tick(), at=max(self.now, min(deadline, self.now + 3.0, until)))


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_a_run_whose_last_worker_of_a_role_was_closed_ends_and_names_it(role):
    run = Guests()
    peer = {"rollout": "node", "reward": "judge", "trainer": "trainer"}[role]
    run.do(PeerFaulted(peer, "it lied"))
    run.wait(29)
    assert not run.core.state.finished
    run.wait(5)
    (end,) = [c for c in run.commands if isinstance(c, Finish)]
    assert not end.is_success
    assert end.reason == (
        f"No {role} worker is left, and none has come within 30 s (controller.replace_s). {peer} was closed: "
        "it lied"
    )


def test_another_worker_that_comes_is_given_time_and_one_that_works_ends_the_wait():
    run = Guests()
    run.do(PeerFaulted("judge", "it lied"))
    run.wait(20)
    run.attach("other", "reward")
    run.wait(100)
    assert not run.core.state.finished
    run.do(PromptsRead(0, 2, True))
    run.say("other", messages.PromptsEncoded(((0, 3), (1, 3)), ()))
    assert run.core.membership.vacant_until is None


def test_time_in_which_the_controller_did_not_run_is_not_time_in_which_nobody_came():
    run = Guests()
    run.do(PeerFaulted("judge", "it lied"))
    run.do(Tick(), at=run.now + 3600)
    assert not run.core.state.finished


def test_a_worker_that_was_lost_and_not_closed_is_waited_for_as_ever():
    run = Guests()
    run.say("judge", messages.Detach("preempted"))
    run.wait(600)
    assert not run.core.state.finished


def test_an_attached_worker_drains_nobody():
    run = Run()
    run.say("reward-0", messages.DrainWorker("rollout-0"))
    assert is_closed(run)
    assert not run.sent(messages.Drain)
    run.say("operator", messages.DrainWorker("rollout-0"))
    assert run.sent(messages.Drain)


def test_a_second_attach_of_a_peer_is_a_fault():
    run = Run()
    run.say("rollout-0", Attach("rollout", "again", 1, "here"))
    assert is_closed(run)
