"""What a simulated cluster is charged: controller time, pulls beside each other, recomputed logprobs."""

from itertools import pairwise

import pytest

from controller.config.models import Config
from controller.core.events import Started, Tick
from controller.simulation import Simulation
from controller.simulation.assumed import in_words
from controller.simulation.bounds import Demand
from controller.simulation.charges import Desk, train_token_s
from protocol.messages import Pull, Pulled
from workers.simulated import (
    RolloutTimes,
    SharedPulls,
    SimulatedEngine,
    SimulatedRollout,
    StepCost,
    Workload,
    make_distribution,
)


def small(**charges: object) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": 3},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 60},
            "trainer": {"batch_groups": 2},
            "simulation": {"workload": {"prompt_tokens": 10}, "pull_s": 0.2, **charges},
        }
    )


class Watched(Simulation):
    """Notes when events are taken, and when what they gave is heard."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, with_digest=True)
        self.taken: list[float] = []
        self.sent: list[tuple[float, float]] = []

    def _step(self, event):
        self.taken.append(self._now)
        super()._step(event)

    def _send(self, peer, messages):
        super()._send(peer, messages)
        if (process := self._processes.get(peer)) is not None:
            self.sent.append((self._now, process.heard_s))


def test_the_controller_takes_one_event_after_the_other_and_answers_at_its_end():
    run = Watched(small(event_s=0.004))
    assert run.run().is_success
    gaps = [after - before for before, after in pairwise(run.taken)]
    assert min(gaps) == pytest.approx(0.004)
    assert all(heard >= now + 0.004 for now, heard in run.sent)


def test_a_slow_controller_is_seen_in_the_time_that_a_run_takes():
    quick, slow = (Simulation(small(event_s=seconds)).run() for seconds in (0.0, 0.05))
    assert slow.starts[-1].at_s > quick.starts[-1].at_s


def test_events_keep_their_order_while_the_controller_is_busy():
    calls, taken = [], []
    desk = Desk(1.0, take=taken.append, on=lambda at, action, *rest: calls.append((at, action, rest)))
    events = [Started(), Tick(), Tick()]
    for event in events:
        desk.bring(5.0, event)
    times = []
    while calls:
        at, action, rest = calls.pop(0)
        times.append(at)
        action(*rest)
    assert taken == events
    assert times == [5.0, 6.0, 7.0]


def test_an_event_that_a_step_brings_waits_behind_it():
    calls, taken = [], []

    def take(event):
        taken.append(event)
        if len(taken) == 1:
            desk.bring(0.0, Tick())

    desk = Desk(1.0, take=take, on=lambda at, action, *rest: calls.append((at, action, rest)))
    desk.bring(0.0, Started())
    while calls:
        _, action, rest = calls.pop(0)
        action(*rest)
    assert taken == [Started(), Tick()]


def an_instance(pulls: SharedPulls) -> SimulatedRollout:
    cost = StepCost(0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    engine = SimulatedEngine(cost, rows=4, kv_blocks=100, token_budget=64, prompt_tokens=16)
    workload = Workload(make_distribution("fixed", cap=20), seed=0, prompt_tokens=16)
    return SimulatedRollout(engine, workload, RolloutTimes(0.0, 2.0, 1.0, 1.0), pulls=pulls)


@pytest.mark.parametrize(
    ("at_once", "seconds"), [(0, [2.0, 2.0, 2.0]), (1, [2.0, 4.0, 6.0]), (2, [2.0, 2.0, 3.0])]
)
def test_pulls_beside_each_other_share_what_they_come_from(at_once, seconds):
    pulls = SharedPulls(at_once)
    took = []
    for one in [an_instance(pulls) for _ in seconds]:
        one.handle(10.0, Pull(1, (), "digest"))
        due = one.next_wake_s()
        while due is not None and not (found := [m for m in one.wake(due) if isinstance(m, Pulled)]):
            due = one.next_wake_s()
        assert due == pytest.approx(10.0 + found[0].pull_s)
        took.append(found[0].pull_s)
    assert took == pytest.approx(seconds)


def test_a_pull_that_has_ended_slows_none():
    pulls = SharedPulls(1)
    assert pulls.begin(0.0, 2.0) == 2.0
    assert pulls.begin(2.0, 2.0) == 2.0


@pytest.mark.parametrize(("proximal", "factor"), [("recompute", 1.5), ("rollout", 1.0)])
def test_the_forward_pass_before_a_step_is_charged_where_there_is_one(proximal, factor):
    made = small(train_token_s=1e-3, recompute_share=0.5)
    trainer = made.trainer.model_copy(update={"proximal": proximal})
    config = made.model_copy(update={"trainer": trainer})
    assert train_token_s(config) == pytest.approx(1e-3 * factor)
    assert Demand.of(config).train_s == pytest.approx(factor * Demand.of(small(train_token_s=1e-3)).train_s)
    steps = [line["time_s/train"] for line in Simulation(config).run().lines]
    plain = [line["time_s/train"] for line in Simulation(small(train_token_s=1e-3)).run().lines]
    assert steps[0] == pytest.approx(factor * plain[0])


def test_what_is_charged_is_said():
    charged = "\n".join(in_words(small(event_s=2e-4, pulls_at_once=4)))
    assert "the controller takes 200 us an event" in charged
    assert "pulled in 0.2 s, 4 at once" in charged
    assert "decisions and messages cost nothing" in "\n".join(in_words(small()))
