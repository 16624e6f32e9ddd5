"""Held-out prompts that an agent plays: which episodes begin, at which version, and what becomes of them."""

import pytest

from controller.core.commands import DropPayload, KeepSamples
from controller.core.events import HeldOutRead, Tick
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from protocol import messages
from tests.support.agent_run import AgentRun

HELD = FIRST_EVALUATION_GROUP
EVALUATION = {"every_steps": 1, "samples": 2, "share": 0.5, "data": {"a": {"path": "-"}}}


def evaluating(*, held_out=2, capacity=8, evaluation=None, **sections):
    """Version 0 is to be evaluated, by groups of two episodes as those of training."""
    run = AgentRun(evaluation=EVALUATION | (evaluation or {}), capacity=capacity, **sections)
    run.do(HeldOutRead(HELD, ("a",) * held_out, "digest"))
    return run


def begun(run):
    return {key for key in run.at if key[0] >= HELD}


def at_workers(run):
    """Groups that have episodes there now."""
    return {group for worker in run.core.state.registry.agents() for group, _ in worker.episodes}


def play(run, group, episode, reward):
    """A whole episode of one turn."""
    run.ask(group, episode)
    run.sample(group, episode)
    run.end(group, episode, reward)


def test_an_episode_of_a_held_out_prompt_is_routed_at_once_with_evaluation_sampling():
    run = evaluating()
    assert begun(run) == {(HELD, 0), (HELD, 1), (HELD + 1, 0), (HELD + 1, 1)}
    run.ask(HELD, 0)
    assert run.routes[HELD, 0].is_evaluation
    assert run.core.state.groups[HELD].state == "generating"  # its sibling has not asked, and need not have
    assert HELD not in run.core.state.ledger
    assert run.core.state.groups[HELD].prompt_tokens == 3


def test_an_instance_stays_at_its_version_while_an_environment_thinks():
    """There may be another turn, and an exact evaluation is answered by one version."""
    run = evaluating(evaluation={"exact": True})
    run.ask(HELD, 0)
    run.sample(HELD, 0)
    run.publish(1)
    assert not any(pull.policy_version == 1 for pull in run.sent(messages.Pull))
    run.ask(HELD, 0)
    assert run.routes[HELD, 0].is_evaluation
    assert run.core.state.registry.workers["rollout-0"].next_version == 0


def test_a_second_turn_goes_on_behind_the_first_with_noise_of_its_own():
    run = evaluating()
    run.ask(HELD, 0)
    first = run.routes[HELD, 0]
    run.sample(HELD, 0, 4)
    run.ask(HELD, 0, most=3)
    second = run.routes[HELD, 0]
    assert (first.begins, second.begins, second.max_new_tokens) == (1, 3, 3)
    assert first.seed != second.seed


def test_an_evaluation_ends_with_the_rewards_of_its_episodes():
    run = evaluating(held_out=1)
    play(run, HELD, 0, 1.0)
    play(run, HELD, 1, 0.0)
    [report] = run.core.evaluation.reports
    assert (report["reward/mean"], report["pass@1"], report["responses"]) == (0.5, 0.5, 2)
    assert report["tokens/by_version"] == {"0": 8}  # what the environment gave is no token of any version


def test_all_conversations_of_an_episode_count_in_its_length():
    run = evaluating(held_out=1, evaluation={"samples": 1})
    run.ask(HELD, 0)
    run.sample(HELD, 0, 4)
    run.ask(HELD, 0, fork=1)
    run.sample(HELD, 1, 3)
    run.end(HELD, 0)
    [report] = run.core.evaluation.reports
    assert (report["response_length/mean"], report["response_length/max"]) == (7, 7)
    assert report["tokens/by_version"] == {"0": 7}
    assert report["tokens"] == run.core.state.accounts.evaluated


def test_evaluation_takes_no_place_beyond_its_share_while_training_wants_it():
    run = evaluating(capacity=4, held_out=3)
    assert begun(run) == {(HELD, 0), (HELD, 1)}  # two of four places
    play(run, HELD, 0, 1.0)
    play(run, HELD, 1, 1.0)
    assert (HELD + 1, 0) in begun(run)


def test_prepared_groups_that_wait_for_a_place_do_not_keep_evaluation_from_its_share():
    run = evaluating(capacity=4, held_out=3, prompts=6)
    for group in (HELD, HELD + 1, HELD + 2):
        assert at_workers(run) == {0, group}
        for episode in (0, 1):
            play(run, group, episode, 1.0)
    assert len(run.core.evaluation.reports) == 1


def test_prompts_of_training_that_wait_go_before_evaluation_beyond_its_share():
    run = evaluating(capacity=8, prompts=6, evaluation={"share": 0.25}, agent={"prepare_groups": 8})
    assert at_workers(run) == {0, 1, 2, HELD}
    for group, there in ((0, {1, 2, 4, HELD}), (1, {2, 3, 4, HELD})):
        run.ask_all((group,))
        for episode in (0, 1):
            run.sample(group, episode)
            run.end(group, episode)
        assert at_workers(run) == there


def test_held_out_prompts_of_an_agent_wait_for_no_encoding():
    run = evaluating(capacity=4, prompts=6)
    assert run.core.evaluation.round.unplaced
    assert run.core.evaluation.unencoded == 0


def test_a_share_of_less_than_one_place_is_one_group():
    run = evaluating(capacity=4, prompts=6, evaluation={"share": 0.1})
    assert at_workers(run) == {0, HELD}


def test_a_prompt_that_fails_before_its_episodes_begin_is_passed_over():
    run = evaluating(capacity=4, held_out=3, prompts=6)
    run.core.evaluation.on_failed(run.core.state.groups[HELD + 1], "its version is gone")
    for episode in (0, 1):
        play(run, HELD, episode, 1.0)
    assert at_workers(run) == {0, HELD + 2}


def test_a_prompt_that_fails_while_its_episodes_begin_is_in_nobodys_way():
    run = evaluating(capacity=4, agents=2, held_out=1, prompts=6, agent={"prepare_groups": 8})
    run.ask_all((0,))
    run.core.evaluation.on_failed(run.core.state.groups[HELD], "its version is gone")
    run.do(Tick())
    run.lose(run.worker_of(0, 0))  # its episodes take the places of groups that are only prepared
    assert 0 in at_workers(run)


def test_groups_that_are_only_prepared_give_their_places_to_the_share_of_evaluation():
    run = AgentRun(evaluation=EVALUATION, capacity=4)
    assert set(run.at) == {(0, 0), (0, 1), (1, 0), (1, 1)}  # training has all places
    run.do(HeldOutRead(HELD, ("a",), "digest"))
    assert begun(run) == {(HELD, 0), (HELD, 1)}
    assert {key[0] for key in run.ended} == {1}  # the youngest was put back
    assert at_workers(run) == {0, HELD}


def test_an_episode_that_times_out_after_untrained_turns_alone_begins_again_and_its_evaluation_ends():
    limits = {"on_timeout": "score", "turn_timeout_s": 5.0, "retries": 1}
    run = evaluating(held_out=1, agent=limits, evaluation={"samples": 1})
    for trial in (1, 2):
        assert run.begins[HELD, 0].trial == trial
        run.ask(HELD, 0, is_trained=False)
        run.sample(HELD, 0)
        run.do(Tick(), at=run.now + 5.0)
    [report] = run.core.evaluation.reports
    assert (report["prompts"], report["failed"]) == (0, 1)


def test_an_episode_at_its_limit_counts_as_a_zero_even_if_training_would_mask_it():
    run = evaluating(held_out=1, agent={"on_limit": "mask"})
    play(run, HELD, 0, 1.0)
    run.ask(HELD, 1)
    run.sample(HELD, 1)
    run.end(HELD, 1, 1.0, ending="turns")
    [report] = run.core.evaluation.reports
    assert (report["reward/mean"], report["responses"]) == (0.5, 2)


def test_held_out_episodes_that_fail_leave_their_prompt_out_and_end_no_run():
    run = evaluating(held_out=1, agent={"retries": 1, "max_consecutive_failures": 1})
    for _ in range(2):
        run.fail(HELD, 0, "agent", "ZeroDivisionError")
    [report] = run.core.evaluation.reports
    assert (report["failed"], report["prompts"]) == (1, 0)
    assert "ZeroDivisionError" in report["failures"][0]
    assert run.core.state.ending is None
    assert (HELD, 1, run.begins[HELD, 1].trial) in run.ended  # its sibling is called off


def test_environments_of_a_prompt_have_the_same_seed_in_every_evaluation_and_another_than_other_prompts():
    run = evaluating(held_out=2)
    seeds = {key: run.begins[key].seed for key in sorted(begun(run))}
    assert seeds[HELD, 0] == seeds[HELD, 1] != seeds[HELD + 1, 0]
    for group in (HELD, HELD + 1):
        for episode in (0, 1):
            play(run, group, episode, 1.0)
    run.publish(1)
    first = HELD + 2
    run.do(HeldOutRead(first, ("a", "a"), "digest"))
    assert [run.begins[first + number, 0].seed for number in (0, 1)] == [
        seeds[HELD + number, 0] for number in (0, 1)
    ]


@pytest.mark.parametrize("prompts", [2, 6])
def test_a_run_that_has_made_its_steps_calls_training_off_for_its_last_evaluation(prompts):
    run = evaluating(capacity=4, held_out=2, prompts=prompts, agent={"prepare_groups": 8})
    assert at_workers(run) == {0, HELD}
    run.core.state.end("all steps are made", is_success=True)
    run.core.state.steps = 2
    run.do(HeldOutRead(99, (), ""))
    assert at_workers(run) == {HELD, HELD + 1}
    assert not run.core.state.finished


def test_a_run_that_ends_prepares_no_more_groups_of_training():
    run = evaluating(capacity=6, held_out=1, prompts=6, agent={"prepare_groups": 8})
    run.core.state.end("all steps are made", is_success=True)
    run.core.state.steps = 2
    run.do(Tick())
    assert at_workers(run) == {HELD}


def kept_and_dropped(run):
    """Of the last step: groups that are kept, by step, and those whose payload goes."""
    kept = {c.step: [one.group for one in c.groups] for c in run.commands if isinstance(c, KeepSamples)}
    return kept, [group for c in run.commands if isinstance(c, DropPayload) for group in c.groups]


def test_answers_that_failed_are_kept_when_the_evaluation_ends_and_their_payload_waits_for_that():
    run = evaluating(held_out=3, samples={"groups": 0, "held_out": 1})
    for episode, reward in ((0, 1.0), (1, 0.0)):
        play(run, HELD, episode, reward)
    assert kept_and_dropped(run) == ({}, [])
    assert HELD in run.core.groups_with_payload()
    for episode in (0, 1):
        play(run, HELD + 1, episode, 1.0)
    assert kept_and_dropped(run) == ({}, [HELD + 1])
    for episode in (0, 1):
        play(run, HELD + 2, episode, 0.0)
    assert kept_and_dropped(run) == ({1: [HELD + 2]}, [HELD, HELD + 2])
    assert not any(group >= HELD for group in run.core.groups_with_payload())


def test_no_answer_is_kept_where_none_is_asked_for():
    run = evaluating(held_out=1)
    for episode in (0, 1):
        play(run, HELD, episode, 0.0)
    assert kept_and_dropped(run) == ({}, [HELD])
