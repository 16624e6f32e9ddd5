"""Why a run is alive, in one reason; and a run that stands still ends in words."""

import json

import pytest

from controller.cli.status import in_words
from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.core.commands import Finish, Send
from controller.core.core import Core
from controller.core.decisions.placement.dispatch import Dispatch
from controller.core.decisions.supply.scoring import Scoring
from controller.core.decisions.training.training import Training
from controller.core.decisions.versions.pulls import Pulls
from controller.core.events import PromptsRead, Tick, WorkerExited
from controller.core.liveness import ReasonKind, still_until, why_alive
from controller.simulation import Simulation
from protocol import messages
from protocol.messages import Attach, Beat, Close
from tests.simulation.test_simulated_runs import config
from tests.support.core_run import Run as OneOfEach
from tests.support.placing_run import Run
from tests.unit.controller.host.test_watchdog import written


def route_nowhere(work, instances, settings):
    """A strategy of a user's who wants too much."""
    return None


def admit_nothing(view, batches):
    """The same, for groups."""
    return 0


def refusing(key: str, function: str, **controller) -> Run:
    run = Run(
        instances=1, staleness={"max_staleness": 1, key: f"{__file__}:{function}"}, controller=controller
    )
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    return run


def kind_of(run: OneOfEach) -> ReasonKind:
    return why_alive(run.core).kind


def wait_for_ticks(run: OneOfEach, until: float) -> list:
    """Nobody says anything but that he is there, and the clock goes from deadline to deadline."""
    while run.now + 1.0 < until:
        for peer in list(run.core.state.registry.workers):
            run.say(peer, Beat(), at=min(until - 0.5, run.now + 0.5))
    return run.do(Tick(), at=until)


def test_a_run_is_alive_by_what_runs_pulls_or_is_awaited():
    run = Run(instances=1)
    assert kind_of(run) == ReasonKind.PULLS
    assert why_alive(run.core).who == "rollout-0"
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    found = why_alive(run.core)
    assert (found.kind, found.who) == (ReasonKind.RUNS, "rollout-0")
    assert found.until_s == pytest.approx(run.now + 600.0)  # limits.token_s
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    found = why_alive(run.core)
    assert (found.kind, found.who) == (ReasonKind.AWAITED, "rollout-0")
    assert found.until_s == run.core.state.registry.local["rollout-0"].deadline
    run.core.state.registry.local.clear()
    run.core.limits.see_roles()
    found = why_alive(run.core)
    assert (found.kind, found.who) == (ReasonKind.AWAITED, "a rollout worker")
    assert "limits.absent_s" in found.text


def test_the_name_of_a_worker_is_as_orders_want_it_at_the_beginning_of_a_sentence_too():
    run = Run(instances=1)
    assert run.core.snapshot().idle_because.startswith("rollout-0 is pulling version 0; in ")
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    assert run.core.snapshot().idle_because.startswith("rollout-0 is started; in ")


def test_a_group_that_no_instance_has_waits_for_its_place():
    run = Run(instances=1)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    seen = run.core.snapshot().oldest_group
    assert seen is not None
    assert seen.waits_for == "responses that run on rollout-0"
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    seen = run.core.snapshot().oldest_group
    assert seen is not None
    assert seen.waits_for == "an instance for 2 queued responses"


def test_a_source_of_prompts_that_takes_its_time_keeps_a_run_alive_without_end():
    run = OneOfEach()
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    assert kind_of(run) == ReasonKind.DATA
    wait_for_ticks(run, 2000.0)
    assert run.core.state.ending is None
    assert run.core.snapshot().idle_because == "The next 64 rows of the data are awaited."


def test_a_run_that_is_over_is_not_stuck():
    run = Run(instances=1)
    run.core.state.end("All is done.", is_success=False)
    run.do(Tick())
    assert kind_of(run) == ReasonKind.OVER
    assert run.core.next_deadline() is None


@pytest.mark.parametrize(
    ("key", "function", "words"),
    [
        ("routing", "route_nowhere", "prompt 0 could start on rollout-0, which is idle at version 0"),
        ("admission", "admit_nothing", "prompt 0 could start on rollout-0, which is idle at version 0"),
    ],
)
def test_a_strategy_that_lets_nothing_start_ends_the_run_in_words(key, function, words):
    run = refusing(key, function, stuck_s=40.0)
    found = why_alive(run.core)
    assert (found.kind, found.who) == (ReasonKind.REFUSED, f"staleness.{key}")
    end = still_until(run.core)
    assert end == pytest.approx(run.now + 40.0)
    wait_for_ticks(run, end - 0.4)
    assert run.core.state.ending is None
    assert run.core.next_deadline() <= end
    assert "The run ends in 0 s (controller.stuck_s)." in run.core.snapshot().idle_because
    commands = wait_for_ticks(run, end)
    (finish,) = [c for c in commands if isinstance(c, Finish)]
    assert not finish.is_success
    assert words in finish.reason
    assert f"staleness.{key} ({__file__}:{function})" in finish.reason
    assert "controller.stuck_s" in finish.reason
    assert [c for c in commands if isinstance(c, Send) and isinstance(c.message, Close)]


def test_somebody_who_comes_gives_a_refusing_strategy_its_time_again():
    run = refusing("routing", "route_nowhere", stuck_s=40.0)
    wait_for_ticks(run, 30.0)
    run.say("late", Attach("rollout", "late", 1, "here"))
    assert kind_of(run) == ReasonKind.AWAITED
    assert still_until(run.core) is None
    run.say("late", messages.Ready(0, 4, 1000))
    run.say("late", messages.Pulled(0, "digest", 0.1))
    assert still_until(run.core) == pytest.approx(run.now + 40.0)


def test_time_in_which_the_controller_did_not_run_does_not_count():
    run = refusing("routing", "route_nowhere", stuck_s=40.0)
    run.do(Tick(), at=10_000.0)
    assert run.core.state.ending is None
    assert still_until(run.core) > run.now + 30.0


TRIGGERS = {
    "dispatch": (Dispatch, "run", None, "could start on rollout-"),
    "pull": (Pulls, "run", None, r"which is idle at version -1, and could pull version 0"),
    "score": (Scoring, "assign", "to_score", r"group \d+ could be scored by reward-"),
    "consume": (Training, "consume", None, "batch 0 is complete and could go to trainer"),
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_core_without_one_of_its_triggers_breaks_the_invariant_in_a_sentence(trigger, monkeypatch):
    owner, name, spare, words = TRIGGERS[trigger]
    method = getattr(owner, name)

    def without(self):
        if spare is None or getattr(self, spare):
            return False
        return method(self)

    monkeypatch.setattr(owner, name, without)
    with pytest.raises(AssertionError, match=f"the run is stuck: .*{words}.*This is a bug"):
        Simulation(config(), seed=1, check_every=1).run(max_events=20_000)


def test_an_instance_that_is_free_again_and_not_looked_at_is_a_broken_invariant(monkeypatch):
    """Dispatch is told of nothing that changes at instances: what waits stays where it is."""
    run = Dispatch.run

    def blind(self):
        for instance in self.state.registry.instances():
            if instance.policy_version >= 0 and not instance.running:
                self.state.registry.changed.pop(instance.peer, None)
        run(self)

    monkeypatch.setattr(Dispatch, "run", blind)
    with pytest.raises(AssertionError, match=r"the run is stuck: .*which is idle at version"):
        Simulation(config(instances=1), seed=1, check_every=1).run(max_events=20_000)


def test_a_core_with_such_a_bug_ends_in_words_all_the_same(monkeypatch):
    monkeypatch.setattr(Training, "consume", lambda self: False)
    outcome = Simulation(config(), seed=1).run(max_events=20_000)
    assert not outcome.is_success
    assert "Nothing can happen any more for 300 s (controller.stuck_s): batch 0 is complete" in outcome.reason


def test_a_trainer_that_comes_back_and_publishes_nothing_is_closed():
    run = OneOfEach()
    run.do(PromptsRead(0, 6, True))
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    core: Core = run.core
    core.state.steps = core.training.trainer_batches.saved_version = 2  # none but 0 was published
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("trainer-2", Attach("trainer", "trainer", 1, "here"))
    run.say("trainer-2", messages.Ready(2, 0, 0))
    worker = core.state.registry.workers["trainer-2"]
    assert core.limits.owed(worker) == "asked to publish version 2"
    due_s, _ = core.limits.outlook(worker)
    assert due_s == core.limits.limit_s("step")


def test_status_says_why_nothing_runs(tmp_path):
    path = written(tmp_path)
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(status | {"idle_because": "The next 64 rows are awaited."}))
    now = (path / "status.json").stat().st_mtime
    assert "nothing runs: The next 64 rows are awaited." in in_words(path, now=now)


@pytest.mark.parametrize(("stuck_s", "status_s"), [(5.0, 5.0), (1.6, "auto")])
def test_a_limit_that_ends_before_the_next_report_is_refused(stuck_s, status_s):
    tree = {"controller": {"stuck_s": stuck_s}, "rollout": {"status_s": status_s}}
    ((fields, _),) = cross_field_problems(Config.model_validate(tree))
    assert fields == ("controller.stuck_s", "rollout.status_s")
