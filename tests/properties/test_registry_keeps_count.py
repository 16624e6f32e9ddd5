"""Whoever attaches, is readied, gets work, falls silent or goes: the registry counts what is there."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.core.state.groups import FIRST_EVALUATION_GROUP, Trajectory
from controller.core.state.registry import Instance, Registry, TextWorker
from protocol.ids import TrajectoryId
from protocol.messages import Attach

TOKENS = st.integers(0, 1000)


class Crowd(RuleBasedStateMachine):
    """Workers and trajectories, of which a list says what the registry must know."""

    def __init__(self):
        super().__init__()
        self.registry, self.now, self.numbers = Registry(), 0.0, 0
        self.waiting: list[Trajectory] = []
        self.placed: dict[TrajectoryId, tuple[Trajectory, str]] = {}
        self.leases: dict[str, float] = {}  # by peer: when it is lost

    def one(self, data, workers):
        return data.draw(st.sampled_from(sorted(workers, key=lambda worker: worker.peer)))

    def instances(self, *states):
        return [one for one in self.registry.instances() if not states or one.state in states]

    # -- workers ----------------------------------------------------------------------------------------

    @rule(role=st.sampled_from(["rollout", "rollout", "reward", "trainer"]), lease_s=st.floats(1, 20))
    def attach(self, role, lease_s):
        self.numbers += 1
        name = f"{role}-{self.numbers}"
        worker = self.registry.attach(f"{self.numbers:04}", Attach(role, name, 1, "here"), self.now)
        worker.lease_s = lease_s
        self.registry.leases.watch(worker)
        self.leases[worker.peer] = self.now + lease_s
        assert self.registry.named(name) is worker

    @precondition(lambda self: any(w.state == "attached" for w in self.registry.workers.values()))
    @rule(data=st.data(), capacity=st.integers(1, 64), kv_tokens=st.integers(1, 10_000))
    def ready(self, data, capacity, kv_tokens):
        worker = self.one(data, [w for w in self.registry.workers.values() if w.state == "attached"])
        if isinstance(worker, Instance):
            self.registry.equip(worker, capacity=capacity, kv_tokens=kv_tokens)
        self.registry.make_ready(worker)

    @precondition(lambda self: self.registry.workers)
    @rule(data=st.data(), after_s=st.floats(0, 5))
    def hear(self, data, after_s):
        self.now += after_s
        worker = self.one(data, self.registry.workers.values())
        worker.last_heard = self.now
        self.leases[worker.peer] = self.now + worker.lease_s

    @precondition(lambda self: self.instances("ready"))
    @rule(data=st.data(), lease_s=st.floats(1, 20))
    def fall_silent(self, data, lease_s):
        instance = self.one(data, self.instances("ready"))
        self.registry.make_absent(instance, self.now, lease_s)
        self.leases[instance.peer] = self.now + lease_s

    @precondition(lambda self: self.registry.workers)
    @rule(data=st.data())
    def leave(self, data):
        worker = self.one(data, self.registry.workers.values())
        for trajectory, peer in list(self.placed.values()):
            if peer == worker.peer:
                self.registry.take(worker, trajectory)
                del self.placed[trajectory.id]
                self.waiting.append(trajectory)
        assert self.registry.remove(worker.peer) is worker
        assert self.registry.remove(worker.peer) is None
        del self.leases[worker.peer]

    @precondition(lambda self: self.instances("absent") and self.instances("ready"))
    @rule(data=st.data())
    def come_back(self, data):
        former, instance = self.one(data, self.instances("absent")), self.one(data, self.instances("ready"))
        for trajectory, peer in list(self.placed.values()):
            if peer == former.peer:
                reported = trajectory.reported
                self.registry.hand_over(former, instance, trajectory)
                self.placed[trajectory.id] = trajectory, instance.peer
                assert trajectory.reported == reported
        self.registry.remove(former.peer)
        del self.leases[former.peer]

    # -- work -------------------------------------------------------------------------------------------

    @rule(is_evaluation=st.booleans(), prompt_tokens=TOKENS)
    def begin(self, is_evaluation, prompt_tokens):
        self.numbers += 1
        group = self.numbers + FIRST_EVALUATION_GROUP * is_evaluation
        self.waiting.append(Trajectory(TrajectoryId(group, 0), prompt_tokens))

    @precondition(lambda self: self.waiting and self.instances("ready"))
    @rule(data=st.data())
    def place(self, data):
        instance, trajectory = self.one(data, self.instances("ready")), self.waiting.pop()
        trajectory.attempt += 1
        self.registry.place(instance, trajectory)
        self.placed[trajectory.id] = trajectory, instance.peer

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), tokens=TOKENS, expected=TOKENS, is_urgent=st.booleans())
    def grow(self, data, tokens, expected, is_urgent):
        trajectory, peer = self.placed[data.draw(st.sampled_from(sorted(self.placed)))]
        instance = self.registry.workers[peer]
        trajectory.extend(trajectory.attempt, 0, tokens)
        self.registry.grow(instance, tokens)
        self.registry.expect(instance, trajectory, expected=expected, is_urgent=is_urgent)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def take(self, data):
        trajectory, peer = self.placed.pop(data.draw(st.sampled_from(sorted(self.placed))))
        self.registry.take(self.registry.workers[peer], trajectory)
        self.waiting.append(trajectory)

    # -- what holds -------------------------------------------------------------------------------------

    @invariant()
    def loads_are_sums_over_what_was_placed(self):
        for instance in self.registry.instances():
            here = [trajectory for trajectory, peer in self.placed.values() if peer == instance.peer]
            assert instance.running == {one.id: one.attempt for one in here}
            assert instance.resident_tokens == sum(one.resident_tokens for one in here)
            assert instance.expected_tokens == sum(one.prompt_tokens + one.expected_tokens for one in here)
            assert instance.urgent == sum(one.is_urgent for one in here)
            assert instance.evaluating == sum(one.is_evaluation for one in here)

    @invariant()
    def the_registry_agrees_with_itself(self):
        self.registry.check()
        ready = [instance for instance in self.instances() if instance.ready]
        assert self.registry.largest_kv >= max((one.kv_tokens for one in ready), default=0)
        assert all(self.registry.instance(one.id) is one for one in self.instances())
        assert all(isinstance(worker, TextWorker) for worker in self.registry.text_workers())

    @invariant()
    def the_next_lease_to_end_is_the_earliest_of_all(self):
        assert self.registry.leases.next() == min(self.leases.values(), default=None)


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=40, stateful_step_count=40)
