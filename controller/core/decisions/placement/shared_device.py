"""Which side holds the device of a colocated run: rollout and trainer in turn (`placement: colocated`).

The device is what the workers of one machine compute on: its CPU, a GPU, or all its GPUs together.

Invariants: the device is given to one side only when no worker of the other holds it and no process of the
other is still ending; an instance is told to hand back its trajectories before it is told to release, so
nothing is lost and they continue where they stood; an instance that has released has no weights, so it gets
no work before it has pulled again; a trainer has the device from loading its model until its version is
published and saved. An evaluation in progress keeps the device on the rollout side until its responses are
there, unless a trainer starts over.
"""

from collections.abc import Iterator

from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.registry import Instance, Worker
from controller.core.state.run_state import SIDES, RunState, Side
from protocol.messages import Interrupt, Release, Released, Take

MEGABYTE = 1 << 20


class SharedDevice:
    """Passes the device between the two sides; does nothing in a run that is not colocated."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds) -> None:
        self.state, self.evaluation = state, evaluation
        self.side: Side = "trainer"
        """The side whose turn it is, or will be once the device is free."""
        self._changing_since: float | None = None  # None while the run starts
        self._peak: dict[str, int] = {}  # bytes by role, summed over the workers that released in this change

    def restart(self) -> None:
        """The controller was restarted: local workers ended with the one before."""
        is_shared = self.state.config.is_colocated
        self.state.device = "changing" if is_shared else "own"
        self.side, self._changing_since = "trainer", None
        for worker in self.state.registry.workers.values():
            worker.device = "none" if is_shared and worker.role in SIDES else "own"

    def run(self, *, is_unfinished: bool, has_next: bool) -> None:
        """Choose the side whose turn it is, have the other side release, and hand the free device over.

        `is_unfinished`: the trainer has something to train, publish or save; `has_next`: it could begin a
        batch or a checkpoint.
        """
        self.side = self._next_side(is_unfinished, has_next)
        held = [worker for worker in self._of_sides() if worker.role != self.side and worker.device != "none"]
        for worker in held:
            if worker.device == "held":
                self._call_off(worker)
        if held or self._is_ending():
            if self.state.device != "changing":
                self.state.device, self._changing_since = "changing", self.state.now
            return
        if self.state.device != self.side:
            self._hand_over()
        if self.side == "trainer":
            for trainer in self._of_sides():
                if trainer.role == "trainer" and trainer.device == "none":
                    trainer.device = "held"
                    self.state.send(trainer.peer, Take())

    def on_released(self, worker: Worker, message: Released) -> None:
        """A worker has left the device."""
        worker.device = "none"
        if isinstance(worker, Instance):
            worker.policy_version = -1
            worker.parked.clear()
            self.state.registry.changed[worker.peer] = None
        figures = self.state.device_figures
        self._peak[worker.role] = self._peak.get(worker.role, 0) + message.peak_bytes
        name = f"device/{worker.role}_peak_mb"
        figures[name] = max(figures.get(name, 0.0), _megabytes(self._peak[worker.role]))
        name = f"device/{worker.role}_left_mb"
        figures[name] = max(figures.get(name, 0.0), _megabytes(message.left_bytes))

    def check(self) -> None:
        """The two sides never hold the device at once."""
        workers = self.state.registry.workers.values()
        if self.state.device == "own":
            assert all(worker.device == "own" for worker in workers), "a device of its own, and yet shared"
            return
        holders = {worker.role for worker in self._of_sides() if worker.device != "none"}
        assert len(holders) <= 1, f"{' and '.join(sorted(holders))} have the device at once"
        if self.state.device != "changing":
            assert holders <= {self.state.device}, f"the {holders} have it, and it is {self.state.device}'s"
        for instance in self.state.registry.instances():
            is_without = instance.device == "none" and instance.ready  # else it may have older work
            assert not (is_without and instance.running), f"{instance.name} runs without a device"
            assert instance.device == "held" or not instance.is_routable, f"{instance.name} takes work"

    # -- inside -----------------------------------------------------------------------------------------

    def _of_sides(self) -> Iterator[Worker]:
        """Attached workers that use the device."""
        return (worker for worker in self.state.registry.workers.values() if worker.role in SIDES)

    def _next_side(self, is_unfinished: bool, has_next: bool) -> Side:
        """The side whose turn it is."""
        trainer = next((worker for worker in self._of_sides() if worker.role == "trainer"), None)
        if trainer is None:
            return "rollout"  # which works until there is a trainer
        if not trainer.ready or is_unfinished:
            return "trainer"
        if self.side == "rollout" and self._is_evaluating():
            return "rollout"
        return "trainer" if has_next else "rollout"

    def _is_evaluating(self) -> bool:
        evaluation = self.evaluation
        if self.state.ending is not None and not evaluation.holds_up_the_end:
            return False  # the trainer needs the device to save
        if evaluation.is_placing or evaluation.pending is not None:
            return True
        return any(instance.evaluating for instance in self.state.registry.instances())

    def _is_ending(self) -> bool:
        """Whether a process of the other side is ending, or has ended and the host has not said so yet."""
        registry = self.state.registry
        return any(
            local.role in SIDES and local.role != self.side and local.deadline is None
            and registry.named(local.name) is None
            for local in registry.local.values()
        )  # fmt: skip

    def _call_off(self, worker: Worker) -> None:
        """Tell a worker to hand back what it runs, and to release the device."""
        if isinstance(worker, Instance) and worker.running:
            attempts = tuple(id.attempt(number) for id, number in worker.running.items())
            self.state.send(worker.peer, Interrupt(attempts))
            self.state.accounts.counts["interrupts"] += len(attempts)
        worker.device = "releasing"
        if isinstance(worker, Instance):
            self.state.registry.changed[worker.peer] = None
        self.state.send(worker.peer, Release())

    def _hand_over(self) -> None:
        state = self.state
        state.device = self.side
        figures = state.device_figures
        figures["device/changes"] = figures.get("device/changes", 0) + 1
        spent_s = 0.0 if self._changing_since is None else state.now - self._changing_since
        figures["device/changing_s"] = round(figures.get("device/changing_s", 0.0) + spent_s, 3)
        self._peak = {}
        for instance in state.registry.instances():  # each has to pull now
            state.registry.changed[instance.peer] = None


def _megabytes(size: int) -> float:
    return round(size / MEGABYTE, 4)
