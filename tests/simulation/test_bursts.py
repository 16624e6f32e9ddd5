"""A thousand instances that attach within a second, and vanish within a second, beside four that stay."""

from controller.core.events import Tick
from protocol import messages
from protocol.messages import Attach, Beat
from tests.support.placing_run import Run

BURST = 1000
STAY = [f"rollout-{number}" for number in range(4)]
GROUPS, SIZE = 128, 4  # of a batch


class BurstRun(Run):
    """Its clock goes by less, and its invariants are looked at when the story says so."""

    beat_s = 0.0

    def do(self, event, at=None):
        self.now = self.now + 0.0002 if at is None else at
        self.commands = self.core.step(self.now, event)
        for command in self.commands:
            message = getattr(command, "message", None)
            if isinstance(message, messages.Route):
                self.routes[message.group, message.member] = command.peer, message
            elif isinstance(message, messages.Train):
                self.trained.append([item.group for item in message.items])
            elif isinstance(message, messages.Score):
                self.to_score.append(message.group)
        return self.commands

    def __init__(self):
        self.trained: list[list[int]] = []
        self.to_score: list[int] = []
        super().__init__(
            instances=len(STAY), prompts=2 * GROUPS, group_size=SIZE, batch_groups=GROUPS,
            controller={"lease_s": 10.0},
            staleness={"max_staleness": 1, "mu": 0.0, "in_flight_batches": "all"},
        )  # fmt: skip
        for name in STAY:
            self.say(name, messages.Pulled(0, "digest", 0.1))

    def wait(self, seconds):
        """Everybody who stays beats."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for name in (*STAY, "trainer", "reward-0"):
                self.say(name, Beat())
            while self.core.dispatch.is_cut:
                self.do(Tick())

    def work(self):
        """What runs at those who stay ends, and its groups are scored; returns how many responses ended."""
        staying = [one for one in self.core.state.registry.instances() if one.name in STAY]
        running = [id for one in staying for id in list(one.running)]
        for id in running:
            self.finish(id.group, id.member)
        while self.to_score:
            group = self.to_score.pop()
            attempt = self.core.state.groups[group].score_attempt
            self.say("reward-0", messages.GroupScored(group, attempt, (0.0, 1.0, 0.0, 1.0)))
        return len(running)


def running(run) -> int:
    return sum(len(one.running) for one in run.core.state.registry.instances())


def test_a_thousand_instances_that_come_and_go_within_a_second_leave_a_run_as_it_was():
    run = BurstRun()
    registry = run.core.state.registry
    assert running(run) == len(STAY) * 4
    began = run.now
    for number in range(BURST):
        run.join(f"burst-{number}", version=0)
    assert run.now - began < 1.0
    assert registry.ready_instances == BURST + len(STAY)
    assert running(run) == 2 * GROUPS * SIZE  # all that the bound admits, spread over those that came
    run.core.check()

    run.wait(9)
    assert registry.ready_instances == BURST + len(STAY)
    run.wait(2)  # all leases end within this second
    assert registry.ready_instances == len(STAY)
    assert running(run) == len(STAY) * 4
    assert run.core.state.accounts.counts["workers/lost"] == BURST
    run.core.check()

    ended = 0
    while not run.trained:
        ended += (now := run.work())
        assert now, "nothing runs, and the batch is not complete"
    (batch,) = run.trained
    assert len(set(batch)) == GROUPS
    assert ended >= GROUPS * SIZE
    run.core.check()


def test_who_came_in_a_burst_may_come_again_after_it_was_lost():
    run = BurstRun()
    for number in range(BURST):
        run.join(f"burst-{number}", version=0)
    run.wait(11)
    for number in range(BURST):  # another process of the same name has another connection
        peer = f"again-{number}"
        run.say(peer, Attach("rollout", f"burst-{number}", 2, "here"))
        run.say(peer, messages.Ready(0, 4, 1000))
    assert run.core.state.registry.ready_instances == BURST + len(STAY)
    run.core.check()
