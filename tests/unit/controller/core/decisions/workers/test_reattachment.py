"""What a restarted controller lets a worker keep that comes back, and what it gives to others."""

import pytest

from controller.core.commands import Send
from controller.core.core import Core
from controller.core.events import Received, Restarted, Tick, WorkerExited
from controller.core.state.registry import Instance
from protocol.messages import Attach, Holding, Keep, Ready
from tests.simulation.test_simulated_runs import config
from tests.support.fault_host import Plagues
from tests.support.survivors import SurvivingSimulation


class Interrupted:
    """A core whose controller was started again while its instance, remote or `local`, had work."""

    def __init__(self, *, local: int = 0) -> None:
        simulation = SurvivingSimulation(
            config(instances=local), seed=1, prompts=48, plagues=Plagues(), remote=1 - local, check_every=50
        )
        with pytest.raises(RuntimeError, match="No end after"):
            simulation.run(max_events=200)
        self.core: Core = simulation.core
        self.instance: Instance = next(self.core.state.registry.instances())
        self.attempts = tuple((*id, attempt) for id, attempt in self.instance.running.items())
        assert self.instance.policy_version > 0
        assert self.attempts
        self.now = self.core.state.now
        self.tell(Restarted(self.core.state.config.model_dump_json(), "", ()))

    def tell(self, event) -> list:
        commands = self.core.step(self.now, event)
        self.core.check()
        return commands

    def members(self) -> list:
        return [self.core.state.groups[group].members[member] for group, member, _ in self.attempts]

    def come_back(self, version: int, *, former: str | None = None, start: int = 0) -> Keep:
        self.tell(Received("new", Attach("rollout", "node-0", 1, "simulated")))
        held = tuple((*attempt, start) for attempt in self.attempts)
        holding = Holding((former or self.instance.peer,), version, held)
        sent = [c.message for c in self.tell(Received("new", holding)) if isinstance(c, Send)]
        (keep,) = (message for message in sent if isinstance(message, Keep))
        return keep


def test_everything_goes_on_where_it_was_from_the_token_that_the_journal_has():
    run = Interrupted()
    reported = [member.reported for member in run.members()]
    assert {member.state for member in run.members()} == {"running"}
    keep = run.come_back(run.instance.policy_version)
    assert keep.attempts == tuple((*a, n) for a, n in zip(run.attempts, reported, strict=True))
    assert {member.peer for member in run.members()} == {"new"}
    assert run.instance.peer not in run.core.state.registry.workers


def test_what_was_promised_newer_weights_or_has_newer_tokens_does_not_go_on_with_older_ones():
    run = Interrupted()
    assert run.come_back(0).attempts == ()
    assert {member.state for member in run.members()} == {"queued"}


@pytest.mark.parametrize("lie", [{"former": "somebody"}, {"start": 10_000}])
def test_a_stranger_or_one_with_a_gap_keeps_nothing(lie):
    run = Interrupted()
    assert run.come_back(run.instance.policy_version, **lie).attempts == ()


def test_who_does_not_come_back_within_its_lease_loses_what_it_had():
    run = Interrupted()
    run.now += run.core.state.config.controller.lease_s
    run.tell(Tick())
    assert {member.state for member in run.members()} == {"queued"}
    assert run.come_back(run.instance.policy_version).attempts == ()


def test_a_local_worker_is_waited_for_until_its_successor_is_ready_and_goes_on_with_nothing():
    run = Interrupted(local=1)
    name = run.instance.name
    assert {member.state for member in run.members()} == {"running"}
    run.tell(Received("new", Attach("rollout", name, 1, "simulated")))
    assert {member.peer for member in run.members()} == {run.instance.peer}
    run.tell(Received("new", Ready(0, 8, 1000)))
    assert {member.state for member in run.members()} == {"queued"}
    assert run.core.state.registry.named(name).policy_version == -1
    assert run.instance.peer not in run.core.state.registry.workers


def test_a_process_that_ends_takes_nothing_from_what_the_one_before_it_may_have_left():
    run = Interrupted(local=1)
    name = run.instance.name
    run.tell(Received("new", Attach("rollout", name, 1, "simulated")))
    run.tell(WorkerExited(name, "rollout", -9, ""))
    assert {member.state for member in run.members()} == {"running"}
