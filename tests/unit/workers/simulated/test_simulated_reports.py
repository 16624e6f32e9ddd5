"""When simulated instances report: those of a fleet apart, however they begin together."""

import pytest

from protocol.messages import Generated, InstanceStatus, Pull, Report, Route
from workers.simulated import (
    RolloutTimes,
    SimulatedEngine,
    SimulatedRollout,
    StepCost,
    Workload,
    make_distribution,
)


def instance(early: float) -> SimulatedRollout:
    engine = SimulatedEngine(StepCost(), rows=8, kv_blocks=4000, token_budget=8192, prompt_tokens=64)
    workload = Workload(make_distribution("fixed", cap=100_000), seed=0, prompt_tokens=64)
    one = SimulatedRollout(engine, workload, RolloutTimes(0.0, 0.0, 1.0, 2.0, early=early))
    one.wake(0.0)
    one.handle(0.0, Pull(0, "", "digest"))
    one.wake(0.0)
    one.handle(0.0, Route(1, 0, 0, 0, 100_000, ()))
    one.wake(0.0)
    return one


def reports(one: SimulatedRollout, until: float) -> dict[type, list[float]]:
    """When it has said what, to the millisecond."""
    said: dict[type, list[float]] = {Generated: [], InstanceStatus: []}
    while (at := one.next_wake_s()) is not None and at <= until:
        for message in one.wake(at):
            said[type(message)].append(round(at, 3))
    return said


@pytest.mark.parametrize(("early", "first"), [(0.0, 1.0), (0.25, 0.75), (0.9, 0.1)])
def test_the_first_report_comes_sooner_and_the_others_in_the_same_rhythm(early, first):
    said = reports(instance(early), 3.5)
    assert said[Generated] == pytest.approx([first + n for n in range(4) if first + n <= 3.5])
    assert said[InstanceStatus] == pytest.approx([n for n in (2 * first, 2 * first + 2) if n <= 3.5])


def test_a_new_pace_begins_apart_again_where_the_old_one_did():
    one, plain = instance(0.5), instance(0.0)
    for each in (one, plain):
        each.handle(0.25, Report(4.0, 4.0))
    assert reports(one, 7.0)[Generated] == pytest.approx([2.25, 6.25])
    assert reports(plain, 7.0)[Generated] == pytest.approx([1.0, 5.0])
