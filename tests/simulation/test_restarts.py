"""Controllers and trainers die in virtual time between any two events; no prompt is lost or trained twice."""

import random

import pytest
from test_simulated_runs import config

from controller import events
from controller.commands import DropPayload, ReportStep
from controller.core import Core
from controller.events import Event
from controller.simulation import Simulation
from protocol import messages
from protocol.messages import Message, Retire, Train
from workers.simulated import SimulatedTrainer

PROMPTS, STEPS = 48, 12


class DurableTrainer(SimulatedTrainer):
    """A trainer that begins at the newest checkpoint, refuses other batches, and publishes as a real one."""

    def __init__(self, times, *, now, disk):
        super().__init__(times, now=now)
        self.disk, self.version = disk, disk["checkpoint"]
        self._due.clear()
        self._later(now + times.attach_s, messages.Ready(self.version, 0, 0))
        self._later(now + times.attach_s + times.publish_s, self._published(self.version))

    def handle(self, now: float, command: Message) -> list[Message]:
        match command:
            case Train(train_version, items, is_published):
                assert train_version == self.version, f"batch {train_version} to a trainer at {self.version}"
                groups = sorted({item.group for item in items})
                assert self.disk["batches"].setdefault(train_version, groups) == groups
                assert not any(group in self.disk["dropped"] for group in groups)
                self.version += 1
                super().handle(now, command)
                if is_published:
                    self._due = [d for d in self._due if d[2] != self._published(train_version + 1)]
            case messages.SaveCheckpoint(version):
                assert version == self.version
                super().handle(now, command)
            case Retire(version):
                self.disk["files"].discard(version)
        return []

    def wake(self, now: float) -> list[Message]:
        said = super().wake(now)
        for message in said:
            if isinstance(message, messages.CheckpointSaved):
                self.disk["checkpoint"] = message.policy_version
            elif isinstance(message, messages.PolicyPublished):
                self.disk["files"].add(message.policy_version)
        return said


class Killed(Exception):
    """The controller was killed, in the middle of whatever the host did."""


class FragileSimulation(Simulation):
    """The core is thrown away and derived anew from what it was told; so is the trainer, at times."""

    def __init__(self, settings, *, seed: int, controller_deaths: float, trainer_deaths: float) -> None:
        super().__init__(settings, seed=seed, prompts=PROMPTS, check_every=1, with_digest=False)
        self.history: list[tuple[float, Event]] = []
        self.disk = {"checkpoint": 0, "batches": {}, "dropped": set(), "files": set()}
        self.deaths = [0, 0]
        self._rates = controller_deaths, trainer_deaths
        self._death = random.Random(f"deaths/{seed}")
        self._settings, make = settings, self.cluster.make

        def durable(name, role, now):
            made = make(name, role, now)
            return made if role != "trainer" else DurableTrainer(made.times, now=now, disk=self.disk)

        self.cluster.make = durable

    def _deliver(self, event: Event) -> None:
        self.history.append((self._now, event))
        super()._deliver(event)
        if self.core.state.finished or isinstance(event, events.Started | events.Restarted):
            return
        if self._death.random() < self._rates[0]:
            raise Killed
        elif self._death.random() < self._rates[1]:
            for process in [p for p in self._processes.values() if p.role == "trainer"]:
                self.deaths[1] += 1
                self._kill(process)

    def run_through(self):
        while True:
            try:
                return self.run(max_events=100_000)
            except Killed:
                self._crash()

    def _execute(self, command):
        if isinstance(command, DropPayload):
            self.disk["dropped"].update(command.groups)
        super()._execute(command)

    def _crash(self) -> None:
        """The controller is killed, its commands of now are lost, and its workers go with it."""
        self.deaths[0] += 1
        for process in self._processes.values():
            process.is_alive = False
        self._processes.clear()
        self._heap.clear()
        self._ticking = None
        self.core = Core(self._settings)
        lines = []
        for now, event in self.history:
            lines += [c.metrics for c in self.core.step(now, event) if isinstance(c, ReportStep)]
        assert lines[: len(self.outcome.lines)] == self.outcome.lines
        self.outcome.lines = lines
        assert self._read >= self.core.scoring.read_until
        self._read = self.core.scoring.read_until
        self._is_begun = True
        restarted = events.Restarted(self._settings.model_dump_json(), "", ())
        self._at(0.5, self._deliver, restarted)


@pytest.mark.parametrize("seed", range(40))
def test_killed_controllers_and_trainers_lose_no_prompt_and_train_none_twice(seed):
    base = config(
        max_staleness=seed % 5,
        steps=STEPS,
        in_flight_batches="auto" if seed % 2 else "all",
        partial_rollout=seed % 3 != 0,
    )
    trainer = base.trainer.model_copy(update={"checkpoint_steps": (3, 0, 5, 1)[seed % 4]})
    limits = base.controller.model_copy(update={"respawns": 50})
    settings = base.model_copy(update={"trainer": trainer, "controller": limits})
    simulation = FragileSimulation(
        settings, seed=seed, controller_deaths=0.012 * (seed % 3 > 0), trainer_deaths=0.009 * (seed % 3 < 2)
    )
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    batches = simulation.disk["batches"]
    assert list(batches) == list(range(STEPS))
    assert sorted(group for groups in batches.values() for group in groups) == list(range(PROMPTS))
    assert [line["step"] for line in outcome.lines] == list(range(1, STEPS + 1))
    assert outcome.summary["staleness/violations"] == 0
    assert simulation.disk["checkpoint"] == STEPS
    assert len(simulation.disk["files"]) <= 3  # the newest, and what was still being retired at the end


def test_the_sweep_really_kills():
    deaths = [0, 0]
    for seed in range(3):
        settings = config(steps=STEPS)
        simulation = FragileSimulation(settings, seed=seed, controller_deaths=0.01, trainer_deaths=0.005)
        simulation.run_through()
        deaths = [a + b for a, b in zip(deaths, simulation.deaths, strict=True)]
    assert min(deaths) > 3, deaths
