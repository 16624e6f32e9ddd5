"""The source of each pull: it has the version, depends on nobody that waits for it, and is not overrun."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Send
from controller.core.core import Core
from controller.core.events import PeerFaulted, Received, Started
from protocol.messages import (
    Attach,
    PolicyPublished,
    Pull,
    Pulled,
    PullFailed,
    Ready,
    Retire,
    Serve,
    Serving,
)


class Run:
    """A core with a trainer on host `home`, and instances wherever they are put."""

    def __init__(self, fan_out=2):
        config = Config.model_validate({"weights": {"fan_out": fan_out}})
        self.core = Core(config, load_strategies(config))
        self.now, self.count = 0.0, 0
        self.pulls: dict[str, Pull] = {}  # told and not answered, by peer
        self.served: set[str] = set()
        self.endpoints: dict[str, str] = {}
        self.hosts: dict[str, str] = {}
        self.retired: list[str] = []
        self.give(Started())
        self.trainer = self.attach("trainer", "home")
        self.publish(0)

    def give(self, event):
        self.now += 0.01
        for command in self.core.step(self.now, event):
            if not isinstance(command, Send):
                continue
            match command.message:
                case Pull():
                    assert command.peer not in self.pulls
                    self.pulls[command.peer] = command.message
                case Serve():
                    self.served.add(command.peer)
                case Retire():
                    self.retired.append(command.peer)
        self.core.check()

    def attach(self, role, host):
        self.count += 1
        peer = f"{self.count:032x}"
        self.hosts[peer] = host
        self.give(Received(peer, Attach(role, f"{role}-{self.count}", self.count, host)))
        self.give(Received(peer, Ready(0, 4, 1000) if role == "rollout" else Ready(0, 0, 0)))
        return peer

    def serve(self, peer):
        self.endpoints[peer] = f"tcp://{peer}:1"
        self.give(Received(peer, Serving(self.endpoints[peer])))

    def publish(self, version):
        self.core.state.registry.workers[self.trainer].told.may_publish[version] = None  # it was told to
        self.give(Received(self.trainer, PolicyPublished(version, f"v{version}", "d", 1, 0.0)))

    def answer(self, peer, is_success=True):
        version = self.pulls.pop(peer).policy_version
        message = Pulled(version, "d", 0.1) if is_success else PullFailed(version, "broken")
        self.give(Received(peer, message))

    def lose(self, peer):
        self.pulls.pop(peer, None)
        self.give(PeerFaulted(peer, "cut"))


def test_an_instance_on_the_trainers_host_maps_what_lies_there():
    run = Run()
    peer = run.attach("rollout", "home")
    assert run.pulls[peer].sources == ()
    assert run.served == set()


def test_one_elsewhere_is_told_to_pull_once_both_ends_say_where_they_serve():
    run = Run()
    peer = run.attach("rollout", "far")
    assert run.served == {run.trainer, peer}
    run.serve(peer)
    assert peer not in run.pulls
    run.serve(run.trainer)
    assert run.pulls[peer].sources == (f"tcp://{run.trainer}:1",)


def test_the_trainer_feeds_as_many_as_the_fan_out_and_the_others_hang_below_them():
    run = Run(fan_out=2)
    run.attach("rollout", "host 0")
    run.serve(run.trainer)
    peers = [peer for peer in run.hosts if peer != run.trainer]
    peers += [run.attach("rollout", f"host {number}") for number in range(1, 7)]
    for peer in peers:
        run.serve(peer)
    paths = [run.pulls[peer].sources for peer in peers]  # all at once: nobody waits for a whole version
    assert [len(path) for path in paths] == [1, 1, 2, 2, 2, 2, 3]
    assert all(path[-1] == f"tcp://{run.trainer}:1" for path in paths)
    nearest = [peers[0]] * 2 + [peers[1]] * 2
    assert [path[0] for path in paths[2:6]] == [f"tcp://{peer}:1" for peer in nearest]


def test_of_one_host_one_instance_pulls_and_the_next_finds_it_there():
    run = Run()
    first, second = run.attach("rollout", "far"), run.attach("rollout", "far")
    for peer in (run.trainer, first, second):
        run.serve(peer)
    assert set(run.pulls) == {first}
    run.answer(first)
    assert set(run.pulls) == {second}
    run.answer(second)
    run.publish(1)  # to both at once
    assert set(run.pulls) == {first}


def test_one_that_is_told_again_does_not_pull_from_those_below_it():
    run = Run(fan_out=1)
    first = run.attach("rollout", "host 0")
    run.serve(run.trainer)
    second, third = run.attach("rollout", "host 1"), run.attach("rollout", "host 2")
    for peer in (first, second, third):
        run.serve(peer)
    tree, state = run.core.relay_tree, run.core.state
    tree.parents[0] = {first: "", second: first, third: ""}  # the third took the place of the first
    again = state.registry.workers[first]
    again.pulling = None
    assert state.versions.newest is not None
    told = list(tree.sources([again], state.versions.newest))
    assert told == [(again, (f"tcp://{third}:1", f"tcp://{run.trainer}:1"))]


def test_copies_elsewhere_are_retired_with_the_version():
    run = Run()
    peer = run.attach("rollout", "far")
    run.serve(run.trainer)
    run.serve(peer)
    run.answer(peer)
    run.retired.clear()
    run.publish(1)
    assert set(run.retired) == {run.trainer, peer}
    assert run.core.relay_tree.parents.keys() == {1}


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["attach", "serve", "answer", "fail", "lose", "publish"]), st.integers(0, 30)),
    max_size=60,
)


@pytest.mark.parametrize("fan_out", [1, 2, 3])
@given(actions=ACTIONS)
@settings(max_examples=60)
def test_whatever_happens_every_source_has_the_version_or_is_fed_by_those_behind_it(fan_out, actions):
    run = Run(fan_out)
    run.attach("rollout", "host 0")
    run.serve(run.trainer)
    failures: dict[str, int] = {}
    for number, (action, choice) in enumerate(actions, 1):
        attached = [peer for peer in run.hosts if peer in run.core.state.registry.workers]
        instances = [peer for peer in attached if peer != run.trainer]
        told = [peer for peer in instances if peer in run.pulls]
        before = dict(run.pulls)
        if action == "attach":
            run.attach("rollout", f"host {choice % 6}")
        elif action == "publish":
            run.publish(number)
        elif action == "serve" and instances:
            run.serve(instances[choice % len(instances)])
        elif action == "lose" and instances:
            run.lose(instances[choice % len(instances)])
        elif action in ("answer", "fail") and told:
            peer = told[choice % len(told)]
            failures[peer] = failures.get(peer, 0) + 1 if action == "fail" else 0
            run.answer(peer, is_success=action == "answer" or failures[peer] >= 3)
        workers = run.core.state.registry.workers
        owners = {worker.endpoint: worker for worker in workers.values() if worker.endpoint}
        for peer, pull in run.pulls.items():
            if before.get(peer) is pull:
                continue
            assert pull.sources[-1] == f"tcp://{run.trainer}:1"
            assert len(set(pull.sources)) == len(pull.sources)
            assert workers[peer].endpoint not in pull.sources
            owner = owners[pull.sources[0]]
            if owner.role != "trainer":
                assert pull.policy_version in (owner.pulling, owner.policy_version)
