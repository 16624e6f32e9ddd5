"""What a line of metrics.jsonl says of machines, phases and devices."""

import pytest

from controller.config.models import Config
from controller.core.state.accounts import Accounts, Devices
from controller.core.state.registry import Instance, TextWorker, Worker
from controller.core.state.views.machines import devices_of, memory_figures
from controller.simulation import Simulation
from protocol.messages import Beat, Close, MachineUse
from tests.support.core_run import Run


def test_memory_is_that_of_the_largest_worker_of_each_role_that_has_spoken():
    workers = [
        Instance("a", "rollout-0", "rollout", 0.0, usage=MachineUse(500, "GPU", 9_000, 80_000)),
        Instance("b", "rollout-1", "rollout", 0.0, usage=MachineUse(700, "GPU", 8_000, 80_000)),
        TextWorker("c", "reward-0", "reward", 0.0, usage=MachineUse(90, "cpu")),
        Worker("d", "trainer", "trainer", 0.0),
    ]
    assert memory_figures(workers) == {
        "memory/reward_mb": 90,
        "memory/rollout_mb": 700,
        "memory/rollout_device_mb": 9_000,
    }


def test_an_instance_of_vllm_has_the_devices_of_its_tensor_parallel_ranks():
    config = Config.model_validate(
        {"rollout": {"engine": "vllm", "vllm": {"tensor_parallel_size": 4}}, "trainer": {"ranks": 2}}
    )
    assert devices_of(config) == Devices(per_instance=4, trainer=2)
    assert devices_of(Config()) == Devices(1, 1)


def line_of(accounts: Accounts, now: float, devices: Devices) -> dict:
    batch = {"trajectories": 4, "reward/mean": 0.0}
    return accounts.step_line(now, step=1, batch=batch, trainer={}, more={}, devices=devices)


def test_phases_are_shares_of_the_time_since_the_last_line_and_sum_to_one():
    accounts = Accounts(1)
    accounts.advance(3.0, cause="start-up", ready=0, busy=0)
    accounts.advance(4.0, cause="rollout", ready=2, busy=2)
    first = line_of(accounts, 4.0, Devices())
    assert (first["phase/start-up"], first["phase/rollout"]) == (0.75, 0.25)
    accounts.advance(5.0, cause="rollout", ready=2, busy=1)
    accounts.advance(8.0, cause="training", ready=2, busy=0)
    second = line_of(accounts, 8.0, Devices())
    assert (second["phase/start-up"], second["phase/rollout"], second["phase/training"]) == (0.0, 0.25, 0.75)


def test_tokens_per_device_are_of_the_instances_that_were_ready_and_of_the_trainers_ranks():
    accounts = Accounts(1)
    accounts.advance(1.0, cause="rollout", ready=1, busy=1)
    accounts.advance(2.0, cause="rollout", ready=3, busy=3)  # two instances on the mean
    accounts.generated, accounts.trained = 800, 600
    line = line_of(accounts, 2.0, Devices(per_instance=4, trainer=3))
    assert line["throughput/tokens_per_s_per_device"] == pytest.approx(800 / 2 / (2 * 4))
    assert line["throughput/trained_tokens_per_s_per_device"] == pytest.approx(600 / 2 / 3)


def test_a_supervised_run_generates_on_no_device():
    accounts = Accounts(1)
    accounts.advance(1.0, cause="data", ready=0, busy=0)
    assert "throughput/tokens_per_s_per_device" not in line_of(accounts, 1.0, Devices())


def test_what_a_worker_takes_is_in_the_picture_of_the_run_and_a_lie_ends_the_worker():
    run = Run()
    run.say("reward-0", MachineUse(300, "cpu"))
    run.say("rollout-0", MachineUse(2_000, "GPU", 70, 80))
    run.say("rollout-0", Beat())
    seen = {one.name: one for one in run.core.snapshot().workers}
    assert (seen["reward-0"].resident_mb, seen["reward-0"].device) == (300, "cpu")
    assert (seen["rollout-0"].device_mb, seen["rollout-0"].device_total_mb) == (70, 80)
    assert seen["trainer"].resident_mb == 0
    for peer, lie in (("reward-0", MachineUse(1, "cpu", 1, 0)), ("rollout-0", MachineUse(1 << 40, "cpu"))):
        run.say(peer, lie)
        assert [close.is_fault for close in run.sent(Close)] == [True]
        assert str(lie.resident_mb) in run.sent(Close)[0].reason


def test_every_step_of_a_run_has_these_figures():
    lines = Simulation(Config.model_validate({"run": {"steps": 3}}), seed=1).run().lines
    assert len(lines) == 3
    for line in lines:
        phases = [value for key, value in line.items() if key.startswith("phase/")]
        assert sum(phases) == pytest.approx(1.0)
        assert line["throughput/tokens_per_s_per_device"] > 0
