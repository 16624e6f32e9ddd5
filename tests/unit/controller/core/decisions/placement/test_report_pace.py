"""`rollout.progress_s: auto`: the pace follows what runs, within its bounds and without flapping."""

from types import SimpleNamespace

import pytest

from controller.core.decisions.placement.report_pace import RESPONSES_PER_S, SLOWEST_S, STEPS, ReportPace
from protocol.messages import Report


class Told:
    """A state of which nothing counts but how much runs."""

    def __init__(self, progress_s: float | str = "auto") -> None:
        rollout = SimpleNamespace(progress_s=progress_s, first_progress_s=0.5, status_s=0.1)
        self.config = SimpleNamespace(rollout=rollout)
        self.instances = [SimpleNamespace(peer=f"{n}", ready=n > 0) for n in range(3)]
        self.registry = SimpleNamespace(running=0, instances=lambda: iter(self.instances))
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
