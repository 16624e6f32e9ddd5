"""Who has the device of a colocated run: what each side is told, in order, by events said by hand."""

import pytest

from controller.config.models import Config
from controller.core.commands import Finish, Send, Spawn
from controller.core.events import HeldOutRead, PeerFaulted, Restarted, StopRequested, WorkerExited
from controller.core.liveness import check_liveness
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.simulation import Simulation
from protocol import messages
from protocol.messages import Attach, Delta, Generated, Interrupt, Pull, Release, Released, Route, Take, Train
from tests.support.core_run import Run


class Shared(Run):
    """A colocated run with one of each worker, whose trainer publishes version 0 as soon as it is ready."""

    def __init__(self, **sections) -> None:
        self.told: dict = {}  # what was said to each when it attached
        trainer = {"batch_groups": 2, "checkpoint_steps": 0}
        super().__init__(placement="colocated", **{"trainer": trainer, **sections})

    def attach(self, name, role):
        self.say(name, Attach(role, name, 1, "here"))
        self.told[name] = self.orders()
        if role != "trainer":
            self.say(name, messages.Ready(0, 4, 1000 if role == "rollout" else 0))

    def publish(self, version, location="v", digest="digest"):
        self.say("trainer", messages.Ready(version, 0, 0))
        return self.say("trainer", messages.PolicyPublished(version, location, digest, 1, 0.1))

    def orders(self):
        """Whom the last event has told what, and nothing that is no order."""
        kinds = (Interrupt, Pull, Release, Route, Take, Train, messages.Close)
        sent = [c for c in self.commands if isinstance(c, Send) and isinstance(c.message, kinds)]
        return [(c.peer, type(c.message).__name__) for c in sent]

    def released(self, peer, *, peak=3 << 20, left=0):
        return self.say(peer, Released(peak, left, 0.1))

    def is_of(self, side):
        return self.core.state.device == side


def generating(**sections):
    """Groups run on rollout-0, which has pulled version 0."""
    run = Shared(**sections)
    assert run.orders() == [("trainer", "Release")], "it has published, and leaves"
    assert run.is_of("changing")
    run.released("trainer")
    assert run.orders() == [("rollout-0", "Pull")]
    assert run.is_of("rollout")
    return run, run.start_groups(4)


def batch_complete(**sections):
    """Two of the four groups are scored, the others were still generated; the attempts called back."""
    run, routes = generating(**sections)
    for route in [route for route in routes if route.group in (0, 1)]:
        run.generate(route, 3)
    for group in (0, 1):
        run.say("reward-0", messages.GroupScored(group, 1, (1.0, 0.0)))
    assert run.orders() == [("rollout-0", "Interrupt"), ("rollout-0", "Release")]
    (interrupt,) = run.sent(Interrupt)
    return run, interrupt.attempts


def hand_back(run, attempts, tokens=2):
    run.say("rollout-0", Generated.of(tuple(Delta(*one, 0, tokens, 0, "interrupt") for one in attempts)))


def given(run):
    """What rollout-0 runs: attempts, and how many tokens each began with."""
    told = run.core.state.registry.workers["rollout-0"].told.given
    return [(key, told[key].known) for key in told]


def hand_back_as_given(run, running):
    """Without a token of version 1."""
    deltas = [Delta(*key, known, 0, 1, "interrupt") for key, known in running]
    run.say("rollout-0", Generated.of(tuple(deltas)))


def test_a_trainer_takes_the_device_before_it_loads_its_model_and_an_instance_waits_for_it():
    run = Shared()
    assert run.told["trainer"] == [("trainer", "Take")]
    assert run.told["rollout-0"] == []


def test_a_batch_that_is_complete_calls_off_what_runs_and_then_the_device_changes_hands():
    run, attempts = batch_complete()
    assert run.is_of("changing")
    hand_back(run, attempts)
    assert run.orders() == [], "nothing is routed to who is leaving, and nothing trained before it has left"
    run.released("rollout-0", peak=5 << 20, left=1 << 20)
    assert run.orders() == [("trainer", "Take"), ("trainer", "Train")]
    figures = run.core.state.device_figures
    assert (figures["device/rollout_peak_mb"], figures["device/rollout_left_mb"]) == (5.0, 1.0)


def test_who_leaves_with_responses_in_hand_is_at_fault():
    run, _ = batch_complete()
    run.released("rollout-0")
    assert run.orders()[0] == ("rollout-0", "Close")


def trained():
    run, attempts = batch_complete()
    hand_back(run, attempts)
    run.released("rollout-0")
    run.say("trainer", messages.TrainStepFinished(1, 0.1, ()))
    return run


def test_the_trainer_leaves_once_its_version_can_be_pulled_and_what_was_interrupted_goes_on_under_it():
    run = trained()
    assert run.orders() == [], "it has yet to publish"
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest1", 1, 0.1))
    assert run.orders() == [("trainer", "Release")]
    run.released("trainer", peak=7 << 20)
    assert run.orders()[0] == ("rollout-0", "Pull")
    run.say("rollout-0", messages.Pulled(1, "digest1", 0.1))
    assert len(run.core.state.registry.workers["rollout-0"].running) == 4
    assert run.core.state.device_figures["device/trainer_peak_mb"] == 7.0


def test_a_trainer_that_dies_gives_the_device_back_only_when_its_process_has_ended():
    run = trained()
    run.do(PeerFaulted("trainer", "it broke the protocol"))
    assert run.orders() == [("trainer", "Close")], "its process may still have the device"
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    assert [c.name for c in run.commands if isinstance(c, Spawn)] == ["trainer"]
    assert run.orders()[0] == ("rollout-0", "Pull"), "instances generate until there is another trainer"
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    assert run.orders()[-1] == ("rollout-0", "Release")
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    hand_back(run, run.core.state.registry.workers["rollout-0"].told.given, tokens=0)
    run.released("rollout-0")
    assert run.orders() == [("second", "Take")]


def test_who_does_not_leave_the_device_in_time_is_closed():
    run, attempts = batch_complete(limits={"step_s": 3.0})
    hand_back(run, attempts)
    until, closed = run.now + 4.0, []
    while run.now < until:
        for peer in run.core.state.registry.workers:
            run.say(peer, messages.Beat(), at=run.now + 0.1)
            closed += run.sent(messages.Close)
            if closed:
                break
        if closed:
            break
    assert "leave the device to the other side" in closed[0].reason
    assert "limits.step_s" in closed[0].reason


def test_a_release_that_nobody_asked_for_is_a_fault():
    run, _ = generating()
    run.released("rollout-0")
    assert run.orders()[0] == ("rollout-0", "Close")


def test_a_worker_from_elsewhere_is_sent_away_in_words():
    run, _ = generating()
    run.say("guest", Attach("rollout", "guest", 1, "there"))
    (close,) = run.sent(messages.Close)
    assert close.is_fault
    assert "placement: colocated" in close.reason


def test_after_a_restart_nobody_has_the_device():
    run, _ = generating()
    run.do(Restarted(run.config.model_dump_json(), "", ()))
    assert run.is_of("rollout"), "instances generate first, whoever comes back first"
    assert {worker.device for worker in run.core.state.registry.workers.values()} == {"none"}


def test_a_checkpoint_that_an_operator_wants_while_instances_have_the_device_is_written():
    run, attempts = batch_complete(run={"steps": 5})
    hand_back(run, attempts)
    run.released("rollout-0")
    run.say("trainer", messages.TrainStepFinished(1, 0.1, ()))
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest1", 1, 0.1))
    run.released("trainer")
    run.say("rollout-0", messages.Pulled(1, "digest1", 0.1))
    running = given(run)
    run.say("operator", messages.Control("checkpoint", "", "me", "before maintenance"))
    hand_back_as_given(run, running)
    run.released("rollout-0")
    assert run.orders() == [("trainer", "Take")]
    assert [save.policy_version for save in run.sent(messages.SaveCheckpoint)] == [1]
    run.say("trainer", messages.CheckpointSaved(1, "step_1"))
    assert run.orders() == [("trainer", "Release")]


HELD = FIRST_EVALUATION_GROUP
HELD_OUT = {"every_steps": 1, "at_start": False, "samples": 1, "data": {"a": {"path": "-"}}}


def evaluated_after_a_step(**sections):
    """Version 1 is unsaved and is being evaluated on the device; the attempts of all that runs."""
    run, attempts = batch_complete(run={"steps": 5}, evaluation=HELD_OUT, **sections)
    hand_back(run, attempts)
    run.released("rollout-0")
    run.say("trainer", messages.TrainStepFinished(1, 0.1, ()))
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest1", 1, 0.1))
    run.do(HeldOutRead(HELD, ("a", "a"), "digest"))
    run.released("trainer")
    run.say("reward-0", messages.PromptsEncoded(((HELD, 3), (HELD + 1, 3)), ()))
    run.say("rollout-0", messages.Pulled(1, "digest1", 0.1))
    return run, given(run)


def test_a_run_that_is_stopped_during_an_evaluation_gives_the_trainer_the_device_to_save():
    run, running = evaluated_after_a_step()
    run.do(StopRequested("enough"))
    assert ("rollout-0", "Release") in run.orders()
    hand_back_as_given(run, running)
    run.released("rollout-0")
    assert run.orders() == [("trainer", "Take")]
    assert [save.policy_version for save in run.sent(messages.SaveCheckpoint)] == [1]
    run.say("trainer", messages.CheckpointSaved(1, "step_1"))
    assert run.commands[-1] == Finish(True, "enough")


def test_an_instance_that_is_leaving_is_not_told_to_pull_for_an_evaluation():
    run, running = evaluated_after_a_step()
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    assert ("rollout-0", "Release") in run.orders()
    hand_back_as_given(run, running)
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    assert run.orders() == [], "it leaves the device first"
    run.released("rollout-0")
    assert run.orders()[0] == ("rollout-0", "Pull")


@pytest.mark.parametrize("every", [1, 2])
def test_colocated_runs_whose_checkpoints_overlap_with_batches_come_to_their_end(every):
    """A batch may be trained while a checkpoint is written, whose successor is due when that is there."""
    sections = {
        "run": {"steps": 12},
        "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 200, "max_running": 64},
        "trainer": {"batch_groups": 4, "checkpoint_steps": every},
        "staleness": {"max_staleness": 1, "in_flight_batches": "all"},
    }
    outcome = Simulation(Config.model_validate({"placement": "colocated", **sections})).run()
    assert outcome.reason == "All 12 train steps are made."


class Watched(Simulation):
    """A colocated run in which nothing may ever wait for nobody."""

    def _deliver(self, event):
        super()._deliver(event)
        check_liveness(self.core, grace_s=0.0)


ALONE = {
    "placement": "colocated",
    "rollout": {"instances": 1, "group_size": 2, "max_response_tokens": 200, "max_running": 8},
    "simulation": {"offload_s": 0.3},
}


def test_an_instance_that_dies_after_a_stop_does_not_keep_the_trainer_from_saving():
    run = Watched(Config.model_validate({**ALONE, "trainer": {"batch_groups": 4, "checkpoint_steps": 20}}))
    is_stopped, deliver = False, run._deliver

    def deliver_and_stop(event):
        nonlocal is_stopped
        deliver(event)
        if not is_stopped and run.core.state.steps == 2 and run.core.state.device == "rollout":
            is_stopped = True
            run._at(0.5, deliver, StopRequested("enough"))
            run._at(0.6, lambda: [run._kill(p) for p in [*run._processes.values()] if p.role == "rollout"])

    run._deliver = deliver_and_stop
    outcome = run.run(patience_s=1000)
    assert (outcome.is_success, outcome.reason) == (True, "enough")
    assert run.core.training.trainer_batches.saved_version == 2


def test_data_that_ends_while_instances_have_the_device_gives_it_to_the_trainer_to_save():
    sections = {"trainer": {"batch_groups": 2, "checkpoint_steps": 20}, "staleness": {"max_staleness": 0}}
    simulation = {"offload_s": 0.3, "score_s": 0.5}
    run = Watched(Config.model_validate({**ALONE, **sections, "simulation": simulation}), prompts=5)
    outcome = run.run(patience_s=1000)
    assert outcome.reason.startswith("The data ended after 2 train steps; 1 group was left over")
    assert run.core.training.trainer_batches.saved_version == 2
