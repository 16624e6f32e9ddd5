"""The core, event by event: rules that whole runs would hide."""

import pytest

from controller.core.commands import Finish, Forget, Progress, Spawn, Warn
from controller.core.events import (
    PeerFaulted,
    PromptsRead,
    Restarted,
    StopRequested,
    Tick,
    WorkerExited,
)
from controller.core.state.run_state import MAX_COUNTED
from protocol import messages
from protocol.messages import Attach, Beat
from tests.support.core_run import Run


def test_prompts_become_routes_with_reservations_and_seeds_of_their_own():
    run = Run()
    routes = run.start_groups()
    assert [(r.group, r.member, r.attempt) for r in routes] == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]
    assert len({r.seed for r in routes}) == 4
    assert run.core.state.ledger.reserved == 2


def test_a_batch_goes_from_routes_to_the_trainer_and_makes_a_version():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    (train,) = run.sent(messages.Train)
    assert train.train_version == 0
    assert [item.group for item in train.items] == [0, 0, 1, 1]
    assert train.items[0].outcome < 0 < train.items[1].outcome
    run.say("trainer", messages.TrainStepFinished(1, 0.5, (("loss", 0.25),)))
    line = next(c.metrics for c in run.commands if type(c).__name__ == "ReportStep")
    assert line["reward/mean"] == 0.5
    assert line["loss"] == 0.25
    assert line["staleness/max"] == 0
    assert line["tokens/trained"] == 16
    assert not [c for c in run.commands if type(c).__name__ == "Warn"]


def test_optimizer_steps_that_were_skipped_are_said_once():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    run.say("trainer", messages.TrainStepFinished(1, 0.5, (("loss", 0.0), ("skipped_steps", 2.0))))
    (text,) = [c.text for c in run.commands if type(c).__name__ == "Warn"]
    assert "2 optimizer steps of version 1 were skipped" in text


def test_an_interrupted_trajectory_goes_on_with_its_tokens_and_what_is_left_of_its_budget():
    run = Run()
    first = run.start_groups()[0]
    run.publish(1)
    (interrupt,) = run.sent(messages.Interrupt)
    assert len(interrupt.attempts) == 4
    assert run.sent(messages.Pull)[0].policy_version == 1
    run.generate(first, 4, "interrupt")
    (again,) = run.sent(messages.Route)  # behind the Pull, on a link that keeps the order
    run.say("rollout-0", messages.Pulled(1, "digest1", 0.1))
    assert (again.group, again.member, again.attempt) == (0, 0, 2)
    assert again.max_new_tokens == 6
    assert again.segments == ((1, 0, 4),)
    assert again.seed == first.seed
    run.generate(again, 2, version=1)
    assert run.core.state.groups[0].members[0].segments == [(1, 0, 4), (2, 1, 2)]


def test_a_lost_worker_is_fenced_and_its_trajectories_go_on_elsewhere():
    run = Run(instances=2)
    route = run.start_groups(1)[0]
    run.say("rollout-1", messages.Pulled(0, "digest", 0.1))
    run.generate(route, 3, "")
    run.do(WorkerExited("rollout-0", "rollout", -9, ""))
    assert [c.name for c in run.commands if isinstance(c, Spawn)] == ["rollout-0"]
    again = next(r for r in run.sent(messages.Route) if (r.group, r.member) == (0, 0))
    assert again.segments == ((1, 0, 3),)
    run.generate(route, 2, start=3)  # the dead one speaks: counted as lost, changes nothing
    assert run.sent(messages.Close)
    assert run.core.state.accounts.lost == 2
    assert run.core.state.groups[0].members[0].response_tokens == 3


def test_a_silent_worker_is_lost_after_its_lease_and_not_before():
    run = Run(instances=2)
    run.start_groups(1)
    silent_since = run.core.state.registry.workers["rollout-0"].last_heard
    for peer in ("trainer", "reward-0", "rollout-1"):
        run.say(peer, Beat(), at=silent_since + 9.9)
    assert "rollout-0" in run.core.state.registry.workers
    run.do(Tick(), at=run.core.next_deadline())
    assert "rollout-0" not in run.core.state.registry.workers
    assert Forget("rollout-0", "rollout-0") in run.commands


def test_time_in_which_the_controller_stood_still_is_held_against_nobody():
    run = Run()
    run.start_groups()
    run.do(Tick(), at=run.now + 3600)
    assert len(run.core.state.registry.workers) == 3


def test_a_reward_that_always_fails_ends_the_run_with_the_first_traceback():
    run = Run(reward={"max_consecutive_failures": 3, "retries": 5})
    for route in run.start_groups():
        run.generate(route, 4)
    for i in range(3):
        for group in (0, 1):
            attempt = run.core.state.groups[group].score_attempt if group in run.core.state.groups else 0
            run.say(
                "reward-0", messages.ScoreFailed(group, attempt, f"ZeroDivisionError number {i}{group}", "{}")
            )
    assert run.core.state.finished
    assert "ZeroDivisionError number 00" in run.core.summary()["reason"]


def test_a_group_whose_reward_ended_the_run_is_scored_by_one_that_goes_on_with_it():
    run = Run(reward={"max_consecutive_failures": 2, "retries": 5})
    for route in run.start_groups():
        run.generate(route, 4)
    for group in (0, 1):
        run.say("reward-0", messages.ScoreFailed(group, 1, "no such column", "{}"))
    assert run.core.state.finished
    run.do(Restarted(run.config.model_dump_json(), "", ()))
    run.attach("reward-1", "reward")
    assert [score.group for score in run.sent(messages.Score)] == [0, 1]


def test_a_reward_that_fails_once_is_asked_again():
    run = Run()
    for route in run.start_groups()[:2]:
        run.generate(route, 4)
    (score,) = run.sent(messages.Score)
    run.say("reward-0", messages.ScoreFailed(0, score.attempt, "a hiccup", "{}"))
    (again,) = run.sent(messages.Score)
    assert again.attempt == score.attempt + 1
    run.say("reward-0", messages.GroupScored(0, again.attempt, (0.0, 1.0)))
    assert run.core.state.groups[0].state == "occupied"


def test_a_group_that_kills_reward_workers_is_scored_alone_then_set_aside_and_no_other_is_blamed():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 4)

    def die():
        run.do(WorkerExited("reward-0", "reward", -9, ""))
        warnings = [c.text for c in run.commands if isinstance(c, Warn)]
        run.attach("reward-0", "reward")
        return [score.group for score in run.sent(messages.Score)], "".join(warnings)

    assert die()[0] == [0, 1]
    assert die()[0] == [0]  # both are suspects now
    run.say("reward-0", messages.GroupScored(0, run.core.state.groups[0].score_attempt, (0.0, 1.0)))
    assert [score.group for score in run.sent(messages.Score)] == [1]
    assert [die()[0] for _ in range(2)] == [[1], [1]]
    scored, text = die()
    assert not scored
    assert "Prompt 1 is set aside" in text
    assert "5 reward workers died while they scored it, 3 of them with nothing else to score" in text
    assert run.core.state.groups[0].state == "occupied"


def test_a_prompt_that_kills_reward_workers_is_encoded_alone_then_set_aside():
    run = Run(trainer={"batch_groups": 2})

    def asked():
        return [encode.groups for encode in run.sent(messages.Encode)]

    def die():
        run.do(WorkerExited("reward-0", "reward", -9, ""))
        warnings = [c.text for c in run.commands if isinstance(c, Warn)]
        run.attach("reward-0", "reward")
        return asked(), "".join(warnings)

    run.do(PromptsRead(0, 3, True))
    assert asked() == [(0, 1, 2)]
    assert die()[0] == [(0, 1, 2)]
    assert die()[0] == [(0,)]  # all are suspects now
    run.say("reward-0", messages.PromptsEncoded(((0, 3),), ()))
    assert asked() == [(1,)]
    assert [die()[0] for _ in range(2)] == [[(1,)], [(1,)]]
    orders, text = die()
    assert orders == [(2,)]
    assert "Prompt 1 is set aside" in text
    assert "5 reward workers died while they encoded it, 3 of them with nothing else to encode" in text
    run.say("reward-0", messages.PromptsEncoded(((2, 3),), ()))
    assert {id: group.state for id, group in run.core.state.groups.items()} == {
        0: "generating",
        2: "generating",
    }


def test_scoring_waits_until_a_worker_is_idle_for_a_suspect_prompt():
    run = Run()
    routes = run.start_groups()
    run.do(PromptsRead(2, 1, True))
    run.attach("reward-1", "reward")
    for route in routes[:2]:
        run.generate(route, 4)  # group 0 is scored by reward-1, as reward-0 is encoding
    run.do(WorkerExited("reward-0", "reward", -9, ""))
    assert [encode.groups for encode in run.sent(messages.Encode)] == [(2,)]
    run.attach("reward-0", "reward")
    for route in routes[2:]:
        run.generate(route, 4)
    run.do(WorkerExited("reward-1", "reward", -9, ""))
    assert not run.sent(messages.Encode)
    assert not run.sent(messages.Score)
    run.say("reward-0", messages.GroupScored(1, run.core.state.groups[1].score_attempt, (0.0, 1.0)))
    assert [encode.groups for encode in run.sent(messages.Encode)] == [(2,)]
    assert not run.sent(messages.Score)
    run.say("reward-0", messages.PromptsEncoded(((2, 3),), ()))
    assert [score.group for score in run.sent(messages.Score)] == [0]


def test_a_worker_that_says_what_its_role_may_not_is_closed():
    run = Run()
    run.say("rollout-0", messages.TrainStepFinished(1, 0.1, ()))
    assert run.sent(messages.Close)[0].is_fault
    assert any(isinstance(c, Warn) and "may not say" in c.text for c in run.commands)


def test_a_peer_that_breaks_the_protocol_is_closed_and_its_work_is_queued_again():
    run = Run()
    run.start_groups()
    run.do(PeerFaulted("rollout-0", "garbage"))
    assert len(run.core.state.queue) == 4


def test_who_breaks_the_protocol_again_and_again_is_counted_and_not_said_each_time():
    run, said = Run(), []
    for i in range(30):
        run.say(f"peer-{i}", Attach("rollout", f"node1/{i % 7}", 1, "there"))
        run.do(PeerFaulted(f"peer-{i}", f"garbage {i}"))
        said += [c.text for c in run.commands if isinstance(c, Warn)]
    assert said == [
        "node1/0 was closed: garbage 0",
        "node1/2 was closed: garbage 9 (time 10 of its kind)",
    ]
    assert run.core.state.accounts.counts["peers/faulted"] == 30
    run.say("other", Attach("rollout", "node2", 1, "there"))
    run.do(PeerFaulted("other", "garbage"))
    assert [c.text for c in run.commands if isinstance(c, Warn)] == ["node2 was closed: garbage"]


def test_names_that_a_stranger_makes_up_do_not_fill_the_log_or_the_memory():
    run, said = Run(), []
    for i in range(1000):
        run.say(f"peer-{i}", Attach("reward", f"made-up-{i}", 1, "there"))
        run.do(PeerFaulted(f"peer-{i}", "garbage"))
        said += [c.text for c in run.commands if isinstance(c, Warn) and "garbage" in c.text]
    assert len(said) <= MAX_COUNTED + 3  # of what is beyond: the 1st, 10th and 100th
    assert len(run.core.state._counted) <= MAX_COUNTED + 1


def test_the_wait_for_workers_is_told_worker_by_worker():
    run = Run(instances=1)
    told = []
    for name in ("guest-1", "guest-2"):
        run.attach(name, "rollout")
        told += [c.text for c in run.commands if isinstance(c, Progress)]
    assert told == ["workers: guest-1 is ready (4 of 4)", "workers: guest-2 is ready (5 of 5)"]


def test_a_second_trainer_is_refused():
    run = Run()
    run.say("another", Attach("trainer", "another", 2, "there"))
    assert run.sent(messages.Close)[0].is_fault


def test_refused_prompts_are_skipped_and_the_order_of_the_rest_is_kept():
    run = Run()
    run.do(PromptsRead(0, 4, True))
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.say("reward-0", messages.PromptsEncoded(((1, 3), (3, 3)), ((0, "too long"), (2, "empty"))))
    assert [r.group for r in run.sent(messages.Route)] == [1, 1, 3, 3]


def test_prompts_that_are_still_being_encoded_when_the_run_ends_change_nothing():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    run.do(PromptsRead(2, 2, True))
    run.do(StopRequested("enough"))
    run.say("reward-0", messages.PromptsEncoded(((2, 3),), ((3, "too long"),)))
    assert not run.core.state.finished


def test_stopping_waits_for_the_step_that_runs_and_for_its_checkpoint():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    run.do(StopRequested("enough"))
    assert not run.core.state.finished
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint)[0].policy_version == 1
    run.say("trainer", messages.CheckpointSaved(1, "step_1"))
    assert run.commands[-1] == Finish(True, "enough")


@pytest.mark.parametrize("role", ["rollout", "reward"])
def test_a_worker_that_cannot_start_ends_the_run_when_it_is_the_last_of_its_role(role):
    run = Run()
    run.do(WorkerExited(f"{role}-0", role, 1, ""))
    run.say("again", Attach(role, f"{role}-0", 9, "here"))
    run.say("again", messages.WorkerFailed("The engine has no wheels."))
    run.do(WorkerExited(f"{role}-0", role, 1, ""))
    assert run.core.state.finished
    assert "no wheels" in run.core.summary()["reason"]


def test_a_trainer_that_cannot_start_ends_the_run_with_its_last_words():
    run = Run(controller={"respawns": 1})
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    assert [c.name for c in run.commands if isinstance(c, Spawn)] == ["trainer"]
    run.do(WorkerExited("trainer", "trainer", 1, "CUDA is on fire"))
    assert run.commands[-1] == Finish(False, run.core.summary()["reason"])
    assert "CUDA is on fire" in run.core.summary()["reason"]
