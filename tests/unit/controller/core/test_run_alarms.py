"""Workers that keep failing are named with owner, evidence and remedy; a healthy run is left alone."""

import pytest

from controller.config.models import Config
from controller.core.events import WorkerExited
from controller.core.run_alarms import alarms_of
from controller.simulation import Simulation
from protocol.messages import Attach, Beat, Detach, PullFailed, Ready, WorkerFailed
from tests.simulation.test_simulated_runs import config
from tests.support.core_run import Run


def of(run):
    return alarms_of(run.core)


def respawned(run, times, reason="", *, first=0):
    """Each life gets ready, so that it is started again however often."""
    for life in range(first, first + times):
        run.do(WorkerExited("reward-0", "reward", -9, reason))
        run.say(f"life {life}", Attach("reward", "reward-0", 1, "here"))
        run.say(f"life {life}", Ready(0, 0, 0))


def test_a_worker_that_is_started_again_and_again_is_a_storm():
    run = Run(controller={"respawns": 100})
    respawned(run, 4)
    assert of(run) == []
    respawned(run, 1)
    (found,) = of(run)
    assert (found.name, found.owner) == ("respawn storm", "workers")
    assert found.evidence == (
        "5 respawns in 600 s: reward-0 5 times; the last because: it was killed by signal 9"
    )
    assert found.remedy.endswith("is the machine out of memory?")
    assert run.core.snapshot().alarms == (found,)


def test_a_storm_of_workers_that_say_why_asks_nobody_about_memory():
    run = Run(controller={"respawns": 100})
    for life in range(5):
        run.say("reward-0" if life == 0 else f"life {life - 1}", WorkerFailed("The disk is full."))
        respawned(run, 1, first=life)
    (found,) = of(run)
    assert found.evidence.endswith("because: The disk is full")
    assert found.remedy == "Read the log of the one that is named first (logs/NAME.log)."


def test_a_storm_is_over_when_it_was_long_ago():
    run = Run(controller={"respawns": 100})
    respawned(run, 5)
    assert of(run)
    for at in range(int(run.now) + 1, 604, 5):
        for peer in list(run.core.state.registry.workers):
            run.say(peer, Beat(), at=float(at))
    assert of(run) == []


def test_pulls_that_fail_again_and_again_are_named_with_their_instances_and_the_last_reason():
    run = Run(instances=3)
    for peer in ("rollout-0", "rollout-0"):
        run.say(peer, PullFailed(0, "no route to host"))
    assert of(run) == []
    run.say("rollout-1", PullFailed(0, "the segment is gone.\nTraceback"))
    (found,) = of(run)
    assert (found.name, found.owner) == ("failing pulls", "rollout")
    assert found.evidence == (
        "3 pulls failed in 600 s: rollout-0 2 times, rollout-1; the last because: the segment is gone"
    )


def test_pulls_that_fail_because_their_trainer_has_died_are_nobodys_trouble():
    run = Run(instances=4)
    run.say("trainer", Detach("preempted"))
    for number in range(4):
        run.say(f"rollout-{number}", PullFailed(0, "the trainer is gone"))
    assert of(run) == []


def with_kv(blocks):
    whole = config().model_dump()
    whole["simulation"]["engine"]["kv_blocks"] = blocks
    return Config.model_validate(whole)


def judged(settings: Config):
    """The names of alarms that a simulated run had, after every event."""
    simulation, names = Simulation(settings, seed=5), []
    step = simulation.core.step

    def and_look(*args, **more):
        commands = step(*args, **more)
        names.extend(alarm.name for alarm in alarms_of(simulation.core))
        return commands

    simulation.decide = and_look
    outcome = simulation.run()
    assert outcome.is_success
    return simulation.core, set(names)


def test_a_healthy_run_has_none_after_any_event():
    core, names = judged(config())
    assert core.state.accounts.counts["pulls"] > 5
    assert names == set()


def test_engines_with_too_little_kv_memory_are_named():
    core, names = judged(with_kv(10))
    assert core.state.accounts.counts["preemptions"] > 10
    assert names == {"KV preemptions"}


def test_a_run_that_is_over_has_none():
    run = Run(controller={"respawns": 100})
    respawned(run, 5)
    assert of(run)
    run.core.state.finished = True
    assert of(run) == []


@pytest.mark.parametrize("reason", ["", "  \n "])
def test_a_pull_that_failed_without_a_word_is_told_so(reason):
    run = Run(instances=3)
    for peer in ("rollout-0", "rollout-0", "rollout-1"):
        run.say(peer, PullFailed(0, reason))
    assert of(run)[0].evidence.endswith("because: without a word")
