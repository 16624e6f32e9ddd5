"""Every wait has an owner, a length and an end; the stuck one is named, in the log and from elsewhere."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cli.status import in_words
from controller.core.core import Core
from controller.durability.holder import lock_of, mark
from controller.host.run_directory import RunDirectory
from controller.host.status_file import WRITE_S
from controller.host.watchdog import AWAITED, FIRST_S, LEAST_S, Watchdog, rows_of, status_of
from controller.simulation import Simulation
from protocol.errors import RunError
from tests.simulation.test_simulated_runs import config


def some_core(events: int) -> Core:
    simulation = Simulation(config(), seed=3)
    with pytest.raises(RuntimeError):
        simulation.run(max_events=events)
    return simulation.core


def watchdog(*logs: str) -> Watchdog:
    return Watchdog(lease_s=10.0, attach_timeout_s=100.0, has_log=logs.__contains__)


def test_every_worker_with_an_open_command_and_the_oldest_group_are_waits_with_an_end():
    core = some_core(150)
    seen = core.snapshot()
    waits, complaints = watchdog().look(seen, core.state.now)
    owners = {wait.owner for wait in waits}
    assert owners == {w.name for w in seen.workers if w.working_on} | {
        "the next step", f"group {seen.oldest_group.id}",
    }  # fmt: skip
    assert any("generating" in wait.what for wait in waits)
    assert all(wait.what and wait.then and wait.expected_s >= LEAST_S for wait in waits)
    assert complaints == []


def test_a_source_of_prompts_that_gives_none_is_named():
    simulation = Simulation(config(), seed=3)
    simulation._read_prompts = lambda count: None
    with pytest.raises(RuntimeError):
        simulation.run(max_events=50)
    waits, _ = watchdog().look(simulation.core.snapshot(), simulation.core.state.now)
    (step,) = [wait for wait in waits if wait.owner == "the next step"]
    assert step.what == "the next 64 rows of the data"
    assert "source of prompts" in step.then


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_a_worker_that_the_run_does_not_start_itself_has_to_be_attached(role):
    (what,) = [what for what, missing in AWAITED.items() if missing == role]
    seen = replace(some_core(150).snapshot(), waiting_for=what)
    others = {"rollout", "reward", "trainer"} - {role}
    alone = Watchdog(lease_s=10.0, attach_timeout_s=100.0, has_log=lambda name: True, started=others)
    for dog, words in (alone, f"launch.py attach RUN --role {role}`"), (watchdog(), "is started again"):
        (step,) = [wait for wait in dog.look(seen, 0.0)[0] if wait.owner == "the next step"]
        assert step.then.endswith(words)


def test_the_next_step_names_the_log_of_the_one_worker_that_its_oldest_group_waits_for():
    seen = some_core(150).snapshot()
    workers = tuple(
        replace(one, name=name, working_on="generating 8 responses")
        for name, one in zip(("rollout-1", "rollout-12"), seen.workers, strict=False)
    )
    group = replace(seen.oldest_group, waits_for="responses that run on rollout-12")
    seen = replace(seen, workers=workers, oldest_group=group, waiting_for="4 more groups")

    def then(*logs: str) -> str:
        waits, _ = watchdog(*logs).look(seen, 1.0)
        return next(wait.then for wait in waits if wait.owner == "the next step")

    assert then().endswith("on rollout-12; see the log of rollout-12 where it was attached")
    assert then("rollout-1", "rollout-12").endswith(
        "on rollout-12; see logs/rollout-12.log, or `launch.py stacks` of the run"
    )


def test_what_does_not_change_is_overdue_and_complained_of_at_each_doubling():
    dog, core = watchdog(), some_core(150)
    told = [dog.look(core.snapshot(), float(second))[1] for second in range(0, 200)]
    times = [second for second, complaints in enumerate(told) if complaints]
    assert times == [FIRST_S + 1]
    assert any(line.startswith("the next step has waited 121 s for") for line in told[121])
    assert all("the first such wait" in line for line in told[121])


def test_steps_that_are_made_while_somebody_is_not_ready_end_the_wait_for_the_first_one():
    dog, seen = watchdog(), some_core(150).snapshot()
    late = replace(seen.workers[0], name="late", ready=False)
    seen = replace(seen, workers=(*seen.workers, late))
    for second in range(0, 200, 10):
        waits, told = dog.look(replace(seen, steps=seen.steps + second // 10), float(second))
        step = next(wait for wait in waits if wait.owner == "the next step")
        assert step.for_s == 0.0
        assert not any(line.startswith("the next step") for line in told)


def test_what_progresses_is_not_stuck():
    dog, simulation = watchdog(), Simulation(config(steps=4), seed=3)
    told = []
    deliver = simulation._deliver

    def looking(event):
        deliver(event)
        told.extend(dog.look(simulation.core.snapshot(), simulation.core.state.now)[1])

    simulation._deliver = looking
    simulation.run()
    assert told == []


def test_a_silent_worker_is_said_to_be_lost_at_the_end_of_its_lease():
    core = some_core(150)
    core.state.now += 8.0
    waits, _ = watchdog().look(core.snapshot(), core.state.now)
    assert any("in 2 s its lease ends and its work moves" in wait.then for wait in waits)


def written(tmp_path: Path) -> Path:
    """The directory of a run whose controller, this process, lives."""
    core = some_core(150)
    directory = RunDirectory(config().model_copy(update={"run": config().run.model_copy(
        update={"dir": str(tmp_path)})}))  # fmt: skip
    waits, _ = watchdog().look(core.snapshot(), core.state.now)
    status = status_of(core.snapshot(), waits, tokens_per_s=12.0)
    workers = rows_of(core.snapshot().workers)
    directory.write_status(json.dumps({**status, "workers": workers, "steps_wanted": 12, "batch_groups": 4}))
    directory.close()
    lock_of(directory.path).write_text(mark())
    return directory.path


def test_the_status_of_a_run_that_goes_on_hangs_died_or_is_done(tmp_path):
    run = written(tmp_path)
    written_at = (run / "status.json").stat().st_mtime
    lines = in_words(run, now=written_at)
    assert f"goes on (controller pid {os.getpid()}" in lines[0]
    assert any(line.startswith("rollout-") and "generating" in line for line in lines)
    assert not any(line.startswith("waits: ") for line in lines), "nothing has been waited for long"
    (buffers,) = [line for line in lines if line.startswith("buffers by version: ")]
    assert re.search(r": \d (READY|STUCK|PENDING) \(\d+ scored, \d+ under way, \d+ may start\); ", buffers)
    assert "has said nothing for 60 s" in in_words(run, now=written_at + 60)[0]
    (tmp_path / ".run.lock").write_text(str(2**22 + 1))  # beyond the largest pid
    assert "its controller is gone since 60 s" in in_words(run, now=written_at + 60)[0]
    (run / "summary.json").write_text(json.dumps({"is_success": True, "reason": "All is made."}))
    assert in_words(run, now=written_at)[0] == f"{run} is done: All is made."


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"no .*status\.json"):
        in_words(tmp_path, now=0.0)


def test_time_in_which_the_controller_itself_stood_still_counts_for_no_wait():
    dog, core = watchdog(), some_core(150)
    for second in range(60):
        dog.look(core.snapshot(), float(second))
    waits, told = dog.look(core.snapshot(), 3600.0)  # the machine slept
    assert told == []
    assert {wait.for_s for wait in waits} == {59.0}
    later = [dog.look(core.snapshot(), 3600.0 + second)[1] for second in range(1, 100)]
    assert [second for second, told in enumerate(later, 60) if told] == [FIRST_S + 1]


def test_a_wait_is_overdue_although_a_large_run_is_looked_at_seldom():
    dog, core = watchdog(), some_core(150)
    seconds = [number * (WRITE_S + 0.5) for number in range(30)]  # a pause, and the look itself
    assert any(dog.look(core.snapshot(), second)[1] for second in seconds)
