"""The cost model of a finished run is read out of its history."""

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.core.events import Event, Received, Started
from controller.durability.recording import NEEDED_FACTS
from controller.durability.store import Store
from controller.history.profile import profile
from protocol.errors import RunError
from protocol.messages import Attach, InstanceStatus
from strategies.cost_model import QWEN_7B_TP1, Coefficients, load_coefficients, scaled, step_latency

SLOW = scaled(QWEN_7B_TP1, decode=3.0, prefill=1.0)
SIZES = (2, 8, 20, 48, 96)


def written(folder: Path, history: list[Event]) -> Path:
    store = Store(folder / "run.db")
    with store.transaction():
        for fact in NEEDED_FACTS:
            store.put_fact(fact, "{}")
        for second, event in enumerate([Started(), *history]):
            store.append_events(float(second), [(event, False)])
    store.close()
    return folder


def reports(machine: Coefficients, count: int) -> list[InstanceStatus]:
    """Ten steps between two reports, at the loads of SIZES in turn."""
    found = [InstanceStatus(0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0, ())]
    for number in range(1, count + 1):
        last, running = found[-1], SIZES[number % len(SIZES)]
        tokens = running * (1000 + 10 * (number % 7))
        found.append(InstanceStatus(
            number, 0, running, 0, tokens, 10 * number, last.decode_tokens + 10 * running,
            last.decode_s + 10 * step_latency(machine, running, tokens), 0, 0.0,
            last.decode_context + 10 * tokens, 0, (),
        ))  # fmt: skip
    return found


def two_instances(first: Coefficients, second: Coefficients) -> list[Event]:
    history: list[Event] = [
        Received("01", Attach("rollout", "alpha", 1, "here")),
        Received("02", Attach("rollout", "beta", 2, "here")),
    ]
    for one, other in zip(reports(first, 100), reports(second, 100), strict=True):
        history += [Received("01", one), Received("02", other)]
    return history


def test_instances_that_are_alike_are_profiled_together(tmp_path):
    found = profile(written(tmp_path, two_instances(SLOW, SLOW)))
    assert found.together.observations == 200
    assert found.together.error < 0.02
    for running in SIZES:
        expected = step_latency(SLOW, running, 1000 * running)
        assert step_latency(found.together.coefficients, running, 1000 * running) == pytest.approx(
            expected, rel=0.02
        )


def test_each_instance_has_its_own_profile(tmp_path):
    found = profile(written(tmp_path, two_instances(QWEN_7B_TP1, SLOW)))
    assert list(found.workers) == ["alpha", "beta"]
    alpha, beta = (step_latency(fitted.coefficients, 20, 20_000) for fitted in found.workers.values())
    assert beta == pytest.approx(3 * alpha, rel=0.02)


def test_the_command_writes_a_file_that_a_later_run_can_load(tmp_path, capsys):
    written(tmp_path, two_instances(SLOW, SLOW))
    file = tmp_path / "slow.json"
    assert main(["profile", str(tmp_path), "-o", str(file)]) == 0
    assert "all instances  200 intervals, mean error " in capsys.readouterr().out
    assert load_coefficients(file.read_text()) == profile(tmp_path).together.coefficients
    assert main(["profile", str(tmp_path), "-o", str(tmp_path / "nowhere" / "slow.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_that_decoded_nothing_is_refused_in_words(tmp_path):
    with pytest.raises(RunError, match="none of its 0 rollout instances reported"):
        profile(written(tmp_path, []))
    with pytest.raises(RunError, match="There is no run at"):
        profile(tmp_path / "nowhere")
