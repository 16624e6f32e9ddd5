"""Every transition of the tables is taken by a run or a story: else it is not needed, or not tested."""

import pytest

from controller.core.events import PromptsRead, Received, WorkerExited
from controller.core.state.transitions import MACHINES
from controller.simulation import Simulation
from protocol import messages
from protocol.messages import Attach
from tests.simulation.test_simulated_runs import config
from tests.support.core_run import Run
from tests.support.fault_sweep import one
from tests.unit.controller.core.decisions.evaluation.test_evaluation_placement import Evaluated
from tests.unit.controller.core.decisions.evaluation.test_lost_evaluation import Interrupted
from tests.unit.controller.core.decisions.supply import test_episode_failures as failures
from tests.unit.controller.core.decisions.supply import test_episodes as agents
from tests.unit.controller.core.decisions.supply.test_supervised import LENGTHS
from tests.unit.controller.core.decisions.supply.test_supervised import Run as SupervisedRun
from tests.unit.controller.core.decisions.workers.test_reattachment import Interrupted as RestartedAmidWork
from tests.unit.controller.core.effects import test_evaluation_rounds as held_out_agents

FAULTY = (0, 2, 11, 13)
"""Seeds of runs under every fault; of their kinds of transitions each run here has one that no other has."""
Taken = set[tuple[str, str, str]]


class Row(dict):
    """A row of a table that writes down which events were looked up in it."""

    def __init__(self, row, subject: str, state: str, taken: Taken) -> None:
        super().__init__(row)
        self.subject, self.state, self.taken = subject, state, taken

    def __getitem__(self, event):
        target = super().__getitem__(event)
        self.taken.add((self.subject, self.state, event))
        return target


@pytest.fixture
def taken(monkeypatch) -> Taken:
    """The transitions that were taken in the test so far."""
    found: Taken = set()
    for machine in MACHINES:
        for state, row in list(machine.moves.items()):
            monkeypatch.setitem(machine.moves, state, Row(row, machine.subject, state, found))
    return found


def held_out_prompts_are_refused_scored_and_given_up():
    run = Evaluated()
    first, second = run.sent(messages.Encode)[0].groups
    run.say("reward-0", messages.PromptsEncoded(((second, 3),), ((first, "it is empty"),)))
    for route in run.sent(messages.Route):
        run.end(route)
    run.say("reward-0", messages.GroupScored(second, 1, (1.0, 1.0)))
    Interrupted().say("trainer-again", messages.Ready(1, 0, 0))


def a_version_is_shown_again():
    run = Interrupted()
    run.show(1, "w")
    run.say("trainer-again", messages.Ready(0, 0, 0))
    run.show(0, "v")


def a_prompt_kills_reward_workers():
    run = Run()
    run.do(PromptsRead(0, 1, True))
    for _ in range(5):
        run.do(WorkerExited("reward-0", "reward", -9, ""))
        run.attach("reward-0", "reward")


def examples_are_given_and_refused():
    SupervisedRun().read((LENGTHS[0], LENGTHS[2]), ((1, "too long"),))


def a_group_without_signal_is_filtered():
    settings = config(filter="zero_variance")
    run = Run(staleness=settings.staleness.model_dump())
    for route in run.start_groups():
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (1.0, 1.0)))


def a_straggler_begins_again():
    lazy = {"keep_kv": True, "synchronization": "every_few", "sync_steps": 2, "decide_s": 0.3, "mu": 0.3}
    settings = config(max_staleness=1, in_flight_batches=1.5, stragglers="retry", **lazy)
    outcome = Simulation(settings, seed=0, prompts=48).run()
    assert outcome.summary["counts"]["stragglers/retried"]


def an_absent_worker_says_ready_itself():
    run = RestartedAmidWork()
    run.tell(Received(run.instance.peer, messages.Ready(0, 4, 1000)))
    assert run.instance.state == "ready"


def a_prompt_fails_while_it_is_prepared():
    for is_asked in (False, True):
        failures.test_a_prompt_that_fails_too_often_is_set_aside(is_asked)


def prepared_groups_make_room():
    for asked in (1, 2):
        failures.test_what_has_started_takes_the_place_of_what_is_prepared(asked)


def a_version_that_two_could_not_pull_is_followed_by_another():
    run = Run(trainer={"batch_groups": 1, "local": False, "checkpoint_steps": 1})
    for route in run.start_groups(2)[:2]:
        run.generate(route, 4)
    run.say("reward-0", messages.GroupScored(0, 1, (0.0, 1.0)))
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("trainer", messages.CheckpointSaved(1, "checkpoint"))
    run.say("trainer", messages.Detach("preempted before it published version 1"))
    for name in ("rollout-1", "rollout-2"):
        run.attach(name, "rollout")
    for name in ("rollout-1", "rollout-2"):
        run.say(name, messages.PullFailed(0, "it is not there"))
        assert run.core.state.versions.state(0) == "lost"
    run.say("next", Attach("trainer", "trainer", 2, "here"))
    run.say("next", messages.Ready(1, 0, 0))
    run.say("next", messages.PolicyPublished(1, "w", "digest", 1, 0.1))
    assert run.core.state.versions.state(1) == "visible"


AGENTS = (
    agents.test_a_group_of_which_nothing_counts_is_filtered,
    failures.test_a_failure_before_the_start_sends_the_group_back_to_its_preparation,
    agents.test_spare_episodes_are_ended_when_enough_have_ended,
    held_out_agents.test_held_out_episodes_that_fail_leave_their_prompt_out_and_end_no_run,
)
STORIES = (
    *AGENTS, a_prompt_fails_while_it_is_prepared, prepared_groups_make_room,
    held_out_prompts_are_refused_scored_and_given_up, a_version_is_shown_again,
    a_prompt_kills_reward_workers, examples_are_given_and_refused,
    a_group_without_signal_is_filtered, a_straggler_begins_again, an_absent_worker_says_ready_itself,
    a_version_that_two_could_not_pull_is_followed_by_another,
)  # fmt: skip


def test_every_transition_is_taken(taken):
    for story in STORIES:
        story()
    for seed in FAULTY:
        one(seed)
    legal = {(m.subject, state, event) for m in MACHINES for state, row in m.moves.items() for event in row}
    left = sorted(legal - taken)
    assert not left, "no run and no story takes these: " + "; ".join(f"{s} {a} {e}" for s, a, e in left)
