"""Work that could run is placed: whatever the strategy, however full instances are or were."""

import pytest

from controller.core.commands import ReadHeldOut, ReportEvaluation
from controller.core.events import HeldOutRead, Restarted, WorkerExited
from protocol import messages
from protocol.messages import Attach, Delta, Generated
from tests.support.placing_run import Run


@pytest.mark.parametrize("rule", ["status", "every_few"])
def test_an_idle_instance_pulls_when_what_is_queued_may_not_start_at_its_version(rule):
    lazy = {"synchronization": rule, "indicator": "requests", "indicator_threshold": 0.0}
    run = Run(instances=0, staleness={
        "max_staleness": 1, "mu": 0.0, "in_flight_batches": "all", "routing": "least_requests", **lazy,
    })  # fmt: skip
    run.join("B", version=0)  # runs groups 0 and 1
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    run.step(1)
    run.join("A", capacity=1, version=1)  # takes 2.0, and 2.1 waits
    assert run.routes[2, 0][0] == "A"
    assert (2, 1) not in run.routes
    run.finish(1, 0)
    run.finish(1, 1)
    run.score(1)
    run.say("A", messages.Detach("gone"))
    run.beat(1)
    peer, version = run.pulls[-1]  # B is idle at version 0, under which group 2 may not have a member
    assert peer == "B"
    run.say("B", messages.Pulled(version, "digest", 0.1))
    assert {run.routes[2, 0][0], run.routes[2, 1][0]} == {"B"}


def test_guard_lets_a_version_be_pulled_when_the_batch_that_updates_it_is_in_training():
    run = Run(instances=1, staleness={
        "max_staleness": 2, "mu": 0.0, "synchronization": "greedy", "guard": True, "in_flight_batches": "all",
    })  # fmt: skip
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for group in (0, 1):
        run.finish(group, 0)
        run.finish(group, 1)
        run.score(group)
    run.step(1)  # batch 1 is consumed before version 1 is published
    assert run.pulls[-1] == ("rollout-0", 1)


def test_guard_keeps_the_old_version_while_the_batch_of_the_new_one_is_not_there():
    run = Run(instances=1, staleness={
        "max_staleness": 2, "mu": 0.0, "synchronization": "greedy", "guard": True, "in_flight_batches": "all",
    })  # fmt: skip
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    run.step(1)
    assert run.pulls == [("rollout-0", 0)]
    run.finish(1, 0)
    run.finish(1, 1)
    run.score(1)
    run.beat(1)
    assert run.pulls[-1] == ("rollout-0", 1)


def test_guard_does_not_hold_an_instance_at_a_version_that_no_queued_work_may_run_under():
    """One pull fails: what was routed behind it comes back as a group of the version that is not there."""
    run = Run(instances=1, staleness={
        "max_staleness": 0, "mu": 0.0, "synchronization": "greedy", "guard": True, "in_flight_batches": "all",
    })  # fmt: skip
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    run.step(1)
    assert run.pulls[-1] == ("rollout-0", 1)
    assert (1, 0) in run.routes
    run.say("rollout-0", messages.PullFailed(1, "no room"))
    run.beat(1)
    assert run.pulls.count(("rollout-0", 1)) == 2


def test_an_idle_instance_has_all_its_kv_whatever_was_preempted_there_before():
    run = Run(instances=0, response=100, staleness={"max_staleness": 1, "mu": 0.0})
    run.join("A", kv_tokens=120, version=0)
    peer, route = run.routes[0, 0]
    run.say(peer, Generated.of((Delta(0, 0, route.attempt, 0, 60, 0, ""),)))
    for i in range(9):
        run.status("A", i + 1, preemptions=i)
    assert run.core.state.registry.workers["A"].kv_share == 0.5
    for id in list(run.core.state.registry.workers["A"].running):
        if id != (0, 0):
            run.finish(*id)
    run.say("A", messages.GenerationFailed(0, 0, route.attempt, "a hiccup"))
    assert run.routes[0, 0][1].attempt == route.attempt + 1


def test_work_that_fits_no_instance_goes_to_the_largest_when_that_is_idle_and_its_engine_decides():
    run = Run(instances=0, response=100, staleness={"max_staleness": 1, "mu": 0.0})
    run.join("large", kv_tokens=1000, version=0)
    peer, route = run.routes[0, 0]
    run.say(peer, Generated.of((Delta(0, 0, route.attempt, 0, 60, 0, ""),)))
    run.join("small", kv_tokens=50, version=0)
    run.say("large", messages.Detach("gone"))
    for _ in range(20):
        for id in list(run.core.state.registry.workers["small"].running):
            if id != (0, 0):
                run.finish(*id)
                group = id[0]
                if run.core.state.groups[group].state == "scoring":
                    run.score(group)
    assert run.routes[0, 0][0] == "small"


@pytest.mark.parametrize("full", [4, 40])  # of 40, more than are looked at one by one
def test_the_shortlist_does_not_hide_instances_with_room(full):
    """Instances with a free row and no KV look best to typical work; two have room for long work."""
    supply = {"prompts": 2 * full + 16, "batch_groups": 2 * full}
    run = Run(instances=0, group_size=1, response=400, **supply, staleness={
        "max_staleness": 2, "mu": 0.0, "length_prediction": False, "in_flight_batches": "all",
    })  # fmt: skip
    run.join("donor", capacity=2, kv_tokens=9000, version=0)
    donated = list(run.core.state.registry.workers["donor"].running)
    for i in range(full):
        run.join(f"full-{i}", capacity=2, kv_tokens=310, version=0)
    for i in range(2):
        run.join(f"room-{i}", capacity=9, kv_tokens=9000, version=0)
    for peer in [f"full-{i}" for i in range(full)]:
        first, *others = list(run.core.state.registry.workers[peer].running)
        for id in others:
            run.finish(*id, tokens=1)
        route = run.routes[first][1]
        run.say(peer, Generated.of((Delta(*first, route.attempt, 0, 200, 0, ""),)))
        for sequence in (1, 2):
            run.status(peer, sequence)
    for id in donated:
        route = run.routes[id][1]
        run.say("donor", Generated.of((Delta(*id, route.attempt, 0, 300, 0, ""),)))
    run.say("donor", messages.Detach("gone"))
    assert {run.routes[id][0] for id in donated} <= {"room-0", "room-1"}


def test_room_is_judged_by_the_tokens_that_were_reported_since_the_last_load_report():
    run = Run(instances=0, prompts=40, group_size=1, response=400, batch_groups=8, staleness={
        "max_staleness": 2, "mu": 0.0, "length_prediction": False, "in_flight_batches": "all",
    })  # fmt: skip
    run.join("donor", capacity=2, kv_tokens=9000, version=0)
    donated = list(run.core.state.registry.workers["donor"].running)
    run.join("tight", capacity=4, kv_tokens=600, version=0)
    for id in donated:
        run.say("donor", Generated.of((Delta(*id, run.routes[id][1].attempt, 0, 300, 0, ""),)))
    kept, *others = list(run.core.state.registry.workers["tight"].running)
    for id in others:
        run.finish(*id, tokens=1, ending="stop")
        run.core.state.fresh.clear()
    run.say("tight", Generated.of((Delta(*kept, run.routes[kept][1].attempt, 0, 303, 0, ""),)))
    run.say("donor", messages.Detach("gone"))
    assert {run.routes[id][0] for id in donated} == {"donor"}  # 303 do not fit into 600 - 306


def test_what_no_instance_with_room_may_run_holds_nothing_back_that_one_may():
    run = Run(instances=0, staleness={
        "max_staleness": 2, "mu": 0.0, "synchronization": "every_few", "routing": "least_requests",
        "in_flight_batches": "all",
    })  # fmt: skip
    run.join("old", version=0)
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    run.step(1)
    run.join("new", capacity=1, version=1)
    run.join("full", capacity=1, version=1)
    fresh = [id for id, (peer, _) in run.routes.items() if peer in ("new", "full")]
    moved = run.routes[1, 0][1].attempt
    run.finish(*next(id for id in fresh if run.routes[id][0] == "new"))
    run.say("old", Generated.of((Delta(1, 0, moved, 0, 2, 0, "interrupt"),)))
    assert run.routes[1, 0][0] == "new"
    run.say("new", Generated.of((Delta(1, 0, run.routes[1, 0][1].attempt, 0, 2, 1, ""),)))
    run.say("new", messages.Detach("gone"))  # 1.0 is due first; of version 1 only the full one is left
    attempt = run.routes[2, 0][1].attempt
    run.say("old", messages.GenerationFailed(2, 0, attempt, "a hiccup"))
    assert run.routes[2, 0][1].attempt == attempt + 1
    assert run.core.state.groups[1].members[0].state == "queued"


def test_a_successor_of_the_trainer_is_not_told_to_free_what_is_visible():
    run = Run(instances=1, staleness={"max_staleness": 1, "mu": 0.0, "synchronization": "greedy"})
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for version in (1, 2):
        for _ in range(2):
            running = list(run.core.state.registry.workers["rollout-0"].running)
            for id in running:
                run.finish(*id)
            for group, found in list(run.core.state.groups.items()):
                if found.state == "scoring":
                    run.score(group)
        run.step(version)
        run.say("rollout-0", messages.Pulled(version, "digest", 0.1))
    config = run.config.model_dump_json()
    run.do(Restarted(config, "", ()))
    for name in ("t2", "t3"):  # the second dies once it has published what its checkpoint holds
        run.say(name, Attach("trainer", "trainer", 1, "here"))
        run.say(name, messages.PolicyPublished(0, "again", "digest", 1, 0.1))
        run.say(name, messages.Ready(0, 0, 0))
        assert messages.Retire(0) not in run.sent(messages.Retire)
        assert run.core.state.versions.newest.policy_version == 0
        if name == "t2":
            run.do(WorkerExited("trainer", "trainer", -9, ""))


def test_an_admission_rule_that_counts_from_the_last_pull_gets_one_when_nothing_else_is_on_its_way():
    run = Run(instances=1, group_size=1, prompts=20, staleness={
        "max_staleness": 1, "mu": 0.0, "ledger": "completion", "admission": "verl_async",
        "synchronization": "tests.simulation.oracle.plugins:never_pull",
    })  # fmt: skip
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for group in range(4):  # its quota
        run.finish(group, 0)
        run.say("reward-0", messages.GroupScored(group, 1, (1.0,)))
    for version in range(1, 5):
        run.step(version)
    run.beat(1)
    assert run.pulls[-1] == ("rollout-0", 4)
    assert (4, 0) in run.routes


def test_an_exact_evaluation_whose_version_is_lost_for_good_comes_to_its_end():
    run = Run(
        instances=1,
        staleness={"max_staleness": 1, "mu": 0.0, "synchronization": "greedy"},
        evaluation={"every_steps": 1, "at_start": False, "data": {"test": {"path": "x"}}},
    )
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for group in (0, 1):
        run.finish(group, 0)
        run.finish(group, 1)
        run.score(group)
    run.step(1)
    (asked,) = [c for c in run.commands if isinstance(c, ReadHeldOut)]
    run.step(2)
    run.say("rollout-0", messages.Detach("gone"))
    run.do(Restarted(run.config.model_dump_json(), "", ()))
    run.attach("reward-1", "reward")
    run.do(HeldOutRead(asked.first_group, ("test",), "digest"))
    run.say("trainer-2", Attach("trainer", "trainer", 1, "here"))
    run.say("trainer-2", messages.Ready(2, 0, 0))  # its checkpoint is newer than what is evaluated
    run.say("reward-1", messages.PromptsEncoded(((asked.first_group, 3),), ()))
    (report,) = [c.metrics for c in run.commands if isinstance(c, ReportEvaluation)]
    assert report["policy_version"] == 1
    assert "version 1 was lost with its trainer" in str(report["failures"])
