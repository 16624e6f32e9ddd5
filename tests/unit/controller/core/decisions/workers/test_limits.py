"""Nobody is waited for without end: who is heard and does not do what it was asked is closed, by name."""

import pytest

from controller.core.commands import Finish, Send, Spawn, Warn
from controller.core.events import PromptsRead, Received, StopRequested, Tick, WorkerExited
from controller.host.watchdog import Watchdog
from protocol import messages
from protocol.messages import Attach, Beat, Delta, Generated
from tests.support.placing_run import Run as TwoMemberRun

LIMITS = {"answer_s": 20.0, "token_s": 60.0, "pull_s": 90.0, "step_s": 120.0, "ready_s": 150.0,
          "end_s": 200.0, "absent_s": 1000.0}  # fmt: skip


class Run(TwoMemberRun):
    """Everybody beats, and time goes on by itself."""

    def __init__(self, **sections):
        self.said: list[str] = []
        self.closed: dict[str, str] = {}
        self.spawned: list[str] = []
        self.end: Finish | None = None
        super().__init__(**{"limits": LIMITS, **sections})

    def do(self, event, at=None):
        super().do(event, at)
        for command in self.commands:
            match command:
                case Warn(text):
                    self.said.append(text)
                case Send(peer, messages.Close(reason)):
                    self.closed[peer] = reason
                case Spawn(name):
                    self.spawned.append(name)
                case Finish():
                    self.end = command
        return self.commands

    def wait(self, seconds, *, until=lambda: False):
        """Everybody that is attached is heard."""
        end = self.now + seconds
        while self.now < end and not until() and self.end is None:
            for peer, worker in list(self.core.state.registry.workers.items()):
                if not worker.is_absent:
                    self.say(peer, Beat(), at=self.now)
            deadline = self.core.next_deadline()
            self.do(Tick(), at=min(self.now + 3.0, end, end if deadline is None else max(self.now, deadline)))

    def is_there(self, peer):
        return peer in self.core.state.registry.workers

    def is_closed_after(self, peer, seconds):
        """Whether it is closed at this moment, to the second, and not before."""
        self.wait(seconds - 1.5)
        assert self.is_there(peer), self.closed
        self.wait(3.0)
        return not self.is_there(peer) and peer in self.closed


STALENESS = {"max_staleness": 1, "mu": 0.0, "synchronization": "greedy"}


def told(run, *parts):
    return any(all(part in text for part in parts) for text in run.said)


def test_an_instance_that_never_answers_a_pull_is_closed_and_started_again():
    run = Run(staleness=STALENESS)
    assert run.is_closed_after("rollout-0", LIMITS["pull_s"])
    assert told(run, "rollout-0 was closed", "90 s ago to pull version 0", "limits.pull_s allows 90 s")
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    assert run.spawned[-1] == "rollout-0"


@pytest.mark.parametrize("key", ["pull_s", "token_s"])
def test_a_limit_that_an_operator_lowers_counts_for_what_is_waited_for_already(key):
    run = Run(staleness=STALENESS, limits=LIMITS | {"answer_s": 5000.0, key: 5000.0})
    if key == "token_s":
        run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.wait(30)
    run.say("operator", messages.Control("set", f"limits.{key}=50", "anna@here", ""))
    run.wait(15)
    assert run.is_there("rollout-0")
    assert not told(run, "got no token")
    run.wait(10)
    assert told(run, f"limits.{key} allows 50 s")


def test_a_response_without_a_token_goes_on_elsewhere_and_who_does_not_hand_it_back_is_closed():
    run = Run(instances=2, staleness=STALENESS, prompts=1)
    for i in range(2):
        run.say(f"rollout-{i}", messages.Pulled(0, "digest", 0.1))
    id, (peer, route) = next(iter(run.routes.items()))
    other = next(p for p, _ in run.routes.values() if p != peer)
    run.finish(*next(i for i, (p, _) in run.routes.items() if p == other))
    run.wait(LIMITS["token_s"] - 5)
    assert run.is_there(peer)
    run.wait(10, until=lambda: any("got no token" in text for text in run.said))
    assert run.is_there(peer)
    run.say(peer, Generated.of((Delta(*id, route.attempt, 0, 0, 0, "interrupt"),)))
    assert run.routes[id][0] == other  # it has no less room there
    run.finish(*id)
    assert run.is_there(peer)

    run = Run(instances=2, staleness=STALENESS, prompts=1)
    for i in range(2):
        run.say(f"rollout-{i}", messages.Pulled(0, "digest", 0.1))
    assert run.is_closed_after(peer, LIMITS["token_s"] + LIMITS["answer_s"])
    assert told(run, f"{peer} was closed", "20 s ago to hand back 0.", "limits.answer_s allows 20 s")


def test_an_instance_that_hands_everything_back_and_generates_nothing_is_closed_the_second_time():
    run = Run(staleness=STALENESS)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))

    def hand_back():
        for command in run.commands:
            if isinstance(command, Send) and isinstance(command.message, messages.Interrupt):
                deltas = tuple(Delta(*attempt, 0, 0, 0, "interrupt") for attempt in command.message.attempts)
                run.say("rollout-0", Generated.of(deltas))
                return True
        return False

    run.wait(2 * LIMITS["token_s"], until=hand_back)
    assert run.is_there("rollout-0")
    run.wait(LIMITS["token_s"] + 5)
    assert not run.is_there("rollout-0")
    assert told(run, "to generate", "limits.token_s")


def test_who_gives_tokens_now_and_then_runs_for_as_long_as_it_takes():
    run = Run(staleness={**STALENESS, "max_staleness": 0}, response=1000, prompts=1)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for i in range(20):
        run.wait(LIMITS["token_s"] - 2)
        deltas = [Delta(*id, route.attempt, i, 1, 0, "") for id, (_, route) in run.routes.items()]
        run.say("rollout-0", Generated.of(tuple(deltas)))
    assert run.is_there("rollout-0")
    assert not any("token" in text for text in run.said)


def test_an_instance_that_ignores_interrupts_is_closed_though_it_generates():
    run = Run(staleness=STALENESS, response=100_000)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    run.step(1)
    assert run.sent(messages.Interrupt)
    run.say("rollout-0", messages.Pulled(1, "digest", 0.1))
    made = 0
    for _ in range(12):
        run.wait(2)
        if run.is_there("rollout-0"):
            run.say("rollout-0", Generated.of((Delta(1, 0, 1, made, 1, 1, ""),)))
            made += 1
    assert not run.is_there("rollout-0")
    assert told(run, "rollout-0 was closed", "to hand back 1.0")


def test_what_waits_behind_a_pull_is_not_held_against_an_instance_before_the_pull_is_done():
    run = Run(staleness=STALENESS)
    run.wait(LIMITS["token_s"] + LIMITS["answer_s"])  # routed behind the pull
    assert run.is_there("rollout-0")
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.wait(LIMITS["token_s"] - 2)
    assert not any("token" in text for text in run.said)
    run.wait(4)
    assert told(run, "got no token on rollout-0")


def test_a_prompt_that_gets_no_token_anywhere_is_set_aside():
    """Two instances that give tokens to all others: the third time that it comes back with nothing."""
    rules = {**STALENESS, "max_staleness": 0}
    run = Run(instances=2, staleness=rules, prompts=2, group_size=1, batch_groups=2, response=1000)
    for i in range(2):
        run.say(f"rollout-{i}", messages.Pulled(0, "digest", 0.1))
    places = []
    while not told(run, "Prompt 0 is set aside") and len(places) < 9:
        peer, route = run.routes[0, 0]
        places.append(peer)
        run.wait(LIMITS["token_s"] / 2)
        healthy = run.core.state.groups[1].members[0]
        run.say(healthy.peer, Generated.of((Delta(1, 0, healthy.attempt, healthy.reported, 1, 0, ""),)))
        run.wait(LIMITS["token_s"] / 2 + 5, until=lambda: bool(run.sent(messages.Interrupt)))
        run.say(peer, Generated.of((Delta(0, 0, route.attempt, 0, 0, 0, "interrupt"),)))
        run.core.limits._duties[peer].is_silent = False  # as if others had got tokens there meanwhile
    assert len(places) == 3
    assert len(set(places)) == 2
    assert told(run, "Prompt 0 is set aside", "no token came in time, limits.token_s allows 60 s")


def test_an_engine_that_fails_at_everything_is_closed():
    run = Run(staleness=STALENESS, prompts=200)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for _ in range(70):
        if not run.is_there("rollout-0"):
            break
        id = next(iter(run.core.state.registry.workers["rollout-0"].running))
        attempt = run.routes[id][1].attempt
        run.say("rollout-0", messages.GenerationFailed(*id, attempt, "CUDA error"))
    assert not run.is_there("rollout-0")
    assert told(run, "rollout-0 was closed", "64 generations in a row failed there")


def test_a_reward_worker_that_never_encodes_is_closed_and_another_one_does_it():
    run = Run(staleness=STALENESS)
    run.do(PromptsRead(6, 3, True))
    assert run.sent(messages.Encode)
    assert run.is_closed_after("reward-0", LIMITS["answer_s"])
    assert told(run, "reward-0 was closed", "to encode prompt 6", "limits.answer_s")
    run.attach("reward-1", "reward")
    assert run.sent(messages.Encode)[0].groups == (6, 7, 8)


def test_a_reward_worker_that_answers_for_some_of_the_prompts_only_is_closed():
    run = Run(staleness=STALENESS)
    run.do(PromptsRead(6, 3, True))
    run.say("reward-0", messages.PromptsEncoded(((6, 3), (8, 3)), ()))
    assert not run.is_there("reward-0")
    assert told(run, "reward-0 was closed", "It encoded groups 6, 8; it was not asked for just these.")


def test_a_reward_worker_that_never_scores_one_group_is_closed_though_it_scores_others():
    run = Run(staleness={**STALENESS, "max_staleness": 3}, reward={"timeout_s": 10.0})
    limit_s = 2 * (10 + 300) + LIMITS["answer_s"]
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for group in (0, 1):
        run.finish(group, 0)
        run.finish(group, 1)
    run.wait(5)
    run.score(1)
    assert run.is_closed_after("reward-0", limit_s - 5)
    assert told(run, "reward-0 was closed", "to score group 0", "640 s are allowed, for two groups by reward")


def trained(run):
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.finish(0, 0)
    run.finish(0, 1)
    run.score(0)
    return run


def test_a_trainer_that_never_finishes_a_step_is_closed_and_started_again():
    run = trained(Run(staleness=STALENESS))
    assert run.is_closed_after("trainer", LIMITS["step_s"])
    assert told(run, "trainer was closed", "120 s ago to train version 1", "limits.step_s allows 120 s")
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    assert run.spawned[-1] == "trainer"


def test_a_trainer_that_never_publishes_what_it_has_made_is_closed():
    run = trained(Run(staleness=STALENESS))
    run.say("trainer", messages.TrainStepFinished(1, 0.1, ()))
    assert run.is_closed_after("trainer", LIMITS["step_s"])
    assert told(run, "trainer was closed", "to publish version 1")


def test_a_trainer_that_never_publishes_its_first_version_is_closed():
    run = Run(instances=0, staleness=STALENESS)
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.core.state.versions.forget()
    run.attach("trainer-2", "trainer")
    assert run.is_closed_after("trainer-2", LIMITS["step_s"])
    assert told(run, "to publish version 0")


def test_a_trainer_that_never_completes_a_checkpoint_is_closed():
    run = trained(Run(staleness=STALENESS))
    run.step(1)
    run.do(StopRequested("enough"))
    assert run.sent(messages.SaveCheckpoint)
    assert run.is_closed_after("trainer", LIMITS["step_s"])
    assert told(run, "to save version 1")


def test_a_worker_from_outside_that_never_gets_ready_is_closed_and_a_local_one_has_its_own_limit():
    run = Run(staleness=STALENESS)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.say("guest", Attach("reward", "guest", 1, "there"))
    assert run.is_closed_after("guest", LIMITS["ready_s"])
    assert told(run, "guest was closed", "to load what its role needs", "limits.ready_s")


def test_a_worker_that_never_says_where_it_serves_is_closed():
    run = Run(staleness=STALENESS)
    run.say("guest", Attach("rollout", "guest", 1, "there"))
    run.say("guest", messages.Ready(0, 4, 1000))
    run.say("trainer", messages.Serving("tcp://here:1"))
    assert run.is_closed_after("guest", LIMITS["answer_s"])
    assert told(run, "guest was closed", "to say where it hands on weights")


def test_a_worker_that_never_leaves_when_it_is_told_to_is_closed_and_not_started_again():
    run = Run(staleness=STALENESS)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.do(Received("operator", messages.DrainWorker("rollout-0")))
    before = list(run.spawned)
    assert run.is_closed_after("rollout-0", LIMITS["answer_s"])
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    assert run.spawned == before


def test_an_instance_whose_pulls_fail_is_let_go_whether_it_leaves_or_not():
    run = Run(staleness=STALENESS)
    for _ in range(2):
        run.say("rollout-0", messages.PullFailed(0, "no route to host"))
    run.wait(11.0)  # a lease: before the last time, a trainer that has died is to be known to have died
    run.say("rollout-0", messages.PullFailed(0, "no route to host"))
    assert not run.is_there("rollout-0")
    assert told(run, "rollout-0 was closed", "3 pulls in a row failed", "no route to host")


def test_a_run_of_which_a_role_is_absent_for_too_long_ends_and_says_so():
    run = Run(instances=0, staleness=STALENESS)
    run.wait(LIMITS["absent_s"] - 5)
    assert run.end is None
    run.wait(10)
    assert not run.end.is_success
    assert "No rollout worker has been ready for 1000 s, as long as limits.absent_s allows" in run.end.reason
    assert "The same command goes on" in run.end.reason


@pytest.mark.parametrize("is_back", [False, True])
def test_the_end_of_a_run_waits_for_a_trainer_from_outside_for_so_long(is_back):
    run = trained(Run(staleness=STALENESS, outside=True))
    run.step(1)
    run.say("trainer", messages.Detach("its node is gone"))
    run.do(StopRequested("You pressed Ctrl-C."))
    assert told(run, "Version 1 is not saved", "200 s for another one (limits.end_s)", "A second Ctrl-C")
    run.wait(LIMITS["end_s"] - 5)
    assert run.end is None
    if is_back:
        run.attach("trainer-2", "trainer")
        (train,) = run.sent(messages.Train)
        run.say("trainer-2", messages.TrainStepFinished(train.train_version + 1, 0.1, ()))
        run.say("trainer-2", messages.CheckpointSaved(1, "step_1"))
        assert run.end.is_success
    else:
        run.wait(10)
        assert not run.end.is_success
        assert (
            "The trainer was lost before the last of them was saved; the same command goes on"
            in run.end.reason
        )


def test_time_in_which_the_controller_stood_still_is_held_against_nobody():
    run = Run(staleness=STALENESS)
    run.wait(LIMITS["pull_s"] - 10)
    run.do(Tick(), at=run.now + 3600)
    assert run.is_there("rollout-0")
    run.wait(4)
    assert run.is_there("rollout-0")
    run.wait(20)
    assert not run.is_there("rollout-0")


def test_what_the_status_says_of_a_wait_is_what_will_be_done_and_when():
    run = trained(Run(staleness=STALENESS))
    run.wait(30)
    dog = Watchdog(lease_s=10.0, attach_timeout_s=100.0, has_log=lambda name: True)
    waits, _ = dog.look(run.core.snapshot(), run.now)
    then = {wait.owner: wait.then for wait in waits}
    assert "in 90 s it is closed if it has not done so, limits.step_s allows 120 s" in then["trainer"]
    assert "in 30 s without a token it goes on elsewhere, limits.token_s allows 60 s" in then["rollout-0"]


def test_trajectories_are_looked_at_once_per_limit_and_instance():
    run = Run(staleness={**STALENESS, "max_staleness": 0}, response=100_000, prompts=1)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    looks, look = [], run.core.limits._look
    run.core.limits._look = lambda *arguments: (looks.append(run.now), look(*arguments))[1]
    began, made = run.now, 0
    while run.now < began + 10 * LIMITS["token_s"]:
        deltas = [Delta(*id, route.attempt, made, 1, 0, "") for id, (_, route) in run.routes.items()]
        made += 1
        run.say("rollout-0", Generated.of(tuple(deltas)), at=run.now + 1.0)
        run.wait(0.1)
    assert 8 <= len(looks) <= 12
