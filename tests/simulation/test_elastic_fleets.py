"""An instance that joins is used, and one that leaves is missed, in the very step in which it is known."""

from controller.core.commands import Send
from controller.core.events import Received, WorkerExited
from controller.simulation import Simulation
from protocol.messages import Pulled, Route
from tests.simulation.test_simulated_runs import config


class Fleet(Simulation):
    """Keeps, of each event, what it was and who got routes because of it."""

    def __init__(self, *, max_running):
        settings = config(instances=2, steps=10, in_flight_batches="all", max_staleness=2)
        rollout = settings.rollout.model_copy(update={"max_running": max_running})
        super().__init__(settings.model_copy(update={"rollout": rollout}), seed=4, check_every=5)
        self.history = []
        step = self.core.step

        def watched(now, event, **more):
            commands = step(now, event, **more)
            routed = [c.peer for c in commands if isinstance(c, Send) and isinstance(c.message, Route)]
            self.history.append((event, routed))
            return commands

        self.decide = watched

    def instance(self, name):
        return next(p for p in self._processes.values() if p.name == name)


def test_an_instance_that_joins_gets_work_in_the_step_in_which_its_weights_are_there():
    fleet = Fleet(max_running=4)  # so that work waits for it
    fleet._at(6.0, fleet._spawn, "rollout-7", "rollout")
    assert fleet.run().is_success
    newcomer = fleet.instance("rollout-7").peer
    words = [
        (event.message, routed)
        for event, routed in fleet.history
        if isinstance(event, Received) and event.peer == newcomer
    ]
    routed = next(routed for message, routed in words if isinstance(message, Pulled))
    assert routed.count(newcomer) == 4


def test_an_instance_that_leaves_is_missed_in_the_step_in_which_its_end_is_known():
    fleet = Fleet(max_running=32)
    gone = []

    def kill():
        victim = fleet.instance("rollout-1")
        gone.append((victim.peer, len(fleet.core.state.registry.workers[victim.peer].running)))
        fleet._kill(victim)

    fleet._at(8.0, kill)
    assert fleet.run().is_success
    peer, running = gone[0]
    known = next(n for n, (event, _) in enumerate(fleet.history) if isinstance(event, WorkerExited))
    assert running > 0
    assert all(peer not in routed for _, routed in fleet.history[known:])
    assert fleet.history[known][1], "what ran there waits, though the other instance has room"
