"""`rollout.progress_s: auto`: the pace follows what runs, within its bounds and without flapping."""

from types import SimpleNamespace

import pytest

from controller.core.decisions.placement.report_pace import (
    LOADS_PER_S,
    RESPONSES_PER_S,
    SLOWEST_S,
    STATUS_STEPS,
    STEPS,
    TOLD_PER_STEP,
    ReportPace,
)
from protocol.messages import Report
from protocol.settings import SLOWEST_STATUS_S


class Told:
    """A state of which nothing counts but how much runs."""

    def __init__(self, progress_s: float | str = "auto", status_s: float | str = 0.1) -> None:
        rollout = SimpleNamespace(
            progress_s=progress_s, first_progress_s=0.5, status_s=status_s, first_status_s=0.1
        )
        self.config = SimpleNamespace(rollout=rollout)
        self.instances = [SimpleNamespace(peer=f"{n}", ready=n > 0) for n in range(3)]
        self.registry = SimpleNamespace(running=0, ready_instances=2, instances=lambda: iter(self.instances))
        self.said: list[tuple[str, Report]] = []

    def send(self, peer: str, message: Report) -> None:
        self.said.append((peer, message))


def paced(state: Told, pace: ReportPace, running: int) -> float:
    state.registry.running = running
    pace.run()
    return pace.progress_s


@pytest.mark.parametrize(
    ("running", "progress_s"),
    [(0, 0.5), (RESPONSES_PER_S // 2, 0.5), (RESPONSES_PER_S, 1.0), (262_144, SLOWEST_S), (10**8, SLOWEST_S)],
)
def test_so_many_responses_are_told_of_so_often(running, progress_s):
    state = Told()
    assert paced(state, ReportPace(state), running) == pytest.approx(progress_s)


def test_all_that_are_ready_are_told_once_and_who_comes_later_when_it_is_ready():
    state = Told()
    pace = ReportPace(state)
    paced(state, pace, 2 * RESPONSES_PER_S)
    assert state.said == [("1", Report(2.0, pytest.approx(0.4))), ("2", Report(2.0, pytest.approx(0.4)))]
    paced(state, pace, 2 * RESPONSES_PER_S)
    assert len(state.said) == 2
    pace.on_ready(state.instances[0])
    assert state.said[2:] == [("0", Report(2.0, pytest.approx(0.4)))]


def test_it_slows_down_at_once_and_hastens_late():
    state = Told()
    pace = ReportPace(state)
    assert paced(state, pace, RESPONSES_PER_S) == STEPS[2]
    assert paced(state, pace, RESPONSES_PER_S - 1_000) == STEPS[2]  # one step would do
    assert paced(state, pace, round(STEPS[1] * RESPONSES_PER_S)) == STEPS[2]
    assert paced(state, pace, RESPONSES_PER_S // 2) == STEPS[0]


def test_a_number_is_kept():
    state = Told(progress_s=0.5)
    assert paced(state, ReportPace(state), 10**8) == 0.5
    assert not state.said


def status_of(state: Told, pace: ReportPace, instances: int) -> float:
    state.registry.ready_instances = instances
    pace.run()
    return pace.status_s


@pytest.mark.parametrize("progress_s", ["auto", 0.5])
def test_loads_come_as_often_as_a_controller_takes_them_whatever_progress_does(progress_s):
    state = Told(progress_s, status_s="auto")
    pace = ReportPace(state)
    for instances in (1, LOADS_PER_S // 10, 128, 400):
        assert instances / status_of(state, pace, instances) <= LOADS_PER_S
    assert status_of(state, pace, 10**6) == STATUS_STEPS[-1] == pytest.approx(SLOWEST_STATUS_S)
    assert status_of(state, pace, 1) == 0.1
    assert {message.progress_s for _, message in state.said} == {0.5}


def test_so_few_instances_as_a_small_run_has_are_told_nothing():
    state = Told(status_s="auto")
    assert status_of(state, ReportPace(state), 25) == 0.1
    assert not state.said


def test_an_instance_that_comes_and_goes_changes_no_pace():
    state = Told(status_s="auto")
    pace = ReportPace(state)
    slow = status_of(state, pace, 129)
    said = len(state.said)
    for instances in (128, 129, 128, 100):
        assert status_of(state, pace, instances) == slow
    assert len(state.said) == said


def test_who_begins_in_a_large_run_is_told_its_pace():
    state = Told(status_s="auto")
    pace = ReportPace(state)
    status_of(state, pace, 128)
    state.said.clear()
    pace.on_ready(state.instances[0])
    assert state.said == [("0", Report(0.5, pace.status_s))]


def test_many_are_told_in_several_steps_each_once_and_who_left_meanwhile_is_not():
    state = Told()
    state.instances = [SimpleNamespace(peer=f"{n}", ready=True) for n in range(2 * TOLD_PER_STEP + 1)]
    pace = ReportPace(state)
    paced(state, pace, 2 * RESPONSES_PER_S)
    assert len(state.said) == TOLD_PER_STEP
    assert pace.is_cut
    state.instances[-1].ready = False
    while pace.is_cut:
        before = len(state.said)
        pace.run()
        assert len(state.said) <= before + TOLD_PER_STEP
    assert [peer for peer, _ in state.said] == [f"{n}" for n in range(2 * TOLD_PER_STEP)]


def test_a_pace_that_changes_again_is_told_to_all_from_the_first():
    state = Told()
    state.instances = [SimpleNamespace(peer=f"{n}", ready=True) for n in range(2 * TOLD_PER_STEP)]
    pace = ReportPace(state)
    paced(state, pace, 2 * RESPONSES_PER_S)
    paced(state, pace, RESPONSES_PER_S // 2)
    while pace.is_cut:
        pace.run()
    newest = {peer: message.progress_s for peer, message in state.said}
    assert newest == {f"{n}": 0.5 for n in range(2 * TOLD_PER_STEP)}
