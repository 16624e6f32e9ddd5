"""What the page Now takes out of metrics.jsonl, and which workers of a fleet it tells."""

import pytest

from controller.view.pictures import MOST_WORKERS, figures_of, group_of, recent_of, workers_of
from controller.view.prometheus import EPISODES
from tests.support.agent_run import AgentRun

LINES = [
    {"step": 1, "compute/mfu": 0.1, "loss": 3.0},
    {"step": 2, "compute/mfu": 0.2, "phase/training": 1, "memory/trainer_mb": "?", "loss": 2.0},
]


def test_the_figures_are_of_the_newest_step_that_the_core_has_made():
    assert figures_of(LINES, 1) == {"compute/mfu": 0.1}
    assert figures_of(LINES, 9) == {"compute/mfu": 0.2, "phase/training": 1}
    assert figures_of(LINES, 0) == figures_of([], 3) == {}


def test_what_a_step_says_of_its_reward_and_of_episodes_is_told_too():
    """Prometheus has a figure for each of these."""
    line = {"step": 1, "reward/mean": 0.5, "reward/std": 1.0, "environment/share": 0.25, "kv/reused": 0.75}
    line |= {"episode/sampled_tokens/mean": 9, "agent/forks/edited": 1, "turn/overhead_ms/p99": 3.0}
    line |= {"ending/stop": 30, "ending/timeout": 1}
    assert figures_of([line], 1) == {key: v for key, v in line.items() if key not in ("step", "reward/std")}
    assert all(figures_of([{"step": 1, key: 1.0}], 1) == {key: 1.0} for _, key, _ in EPISODES)


def test_shares_of_the_last_steps_are_means_and_a_step_without_one_has_none_of_it():
    steps = [{"step": n, "phase/training": 1.0} for n in range(1, 30)]
    steps[-1] = {"step": 29, "phase/training": 0.5, "phase/rollout": 0.5, "phase/data": "?"}
    found = recent_of(steps, 99)
    assert found["steps"] == 20
    assert found["phases"] == pytest.approx({"phase/rollout": 0.5 / 20, "phase/training": 19.5 / 20})
    assert recent_of(steps, 2) == {"steps": 2, "phases": {"phase/training": 1.0}}
    assert recent_of([], 3) == {"steps": 0, "phases": {}}


def test_shares_of_steps_that_took_unlike_times_are_those_of_their_seconds():
    begin = {"step": 1, "time_s": 9.0, "phase/start-up": 1.0}
    lines = [begin, {"step": 2, "time_s": 10.0, "phase/training": 1.0}]
    assert recent_of(lines, 1) == {"steps": 1, "phases": {"phase/start-up": 1.0}}
    assert recent_of(lines, 2) == {"steps": 2, "phases": {"phase/training": 0.1, "phase/start-up": 0.9}}
    paused = [{"step": n, "time_s": float(n), "phase/training": 1.0} for n in range(3, 40)]
    paused[-1] = {"step": 39, "time_s": 38.0 + 81.0, "phase/paused": 1.0}
    assert recent_of(paused, 39)["phases"] == pytest.approx({"phase/paused": 0.81, "phase/training": 0.19})


def worker(number, **more):
    told = {
        "name": f"rollout-{number}", "role": "rollout", "ready": True, "policy_version": number % 2,
        "running": 2, "resident_tokens": 10, "silent_s": 0.5, "resident_mb": number, "due_s": None,
    }  # fmt: skip
    return told | more


def test_a_fleet_is_told_by_roles_and_by_the_workers_that_something_is_nearest_to_happen_to():
    fleet = [worker(number) for number in range(200)]
    fleet[77] |= {"due_s": 3.0}
    fleet[150] |= {"due_s": -1.0}
    fleet[9] |= {"silent_s": 40.0, "ready": False}
    found = workers_of([*fleet, worker(0, name="trainer-0", role="trainer", policy_version=-1)], "")
    assert len(found["workers"]) == MOST_WORKERS
    assert [one["name"] for one in found["workers"][:3]] == ["rollout-150", "rollout-77", "rollout-9"]
    assert found["workers_found"] == 201
    rollout, trainer = found["roles"]
    assert rollout == {
        "role": "rollout", "workers": 200, "ready": 199, "running": 400, "tokens": 2_000,
        "versions": {"0": 100, "1": 100}, "silent_s": 40.0, "resident_mb": 199,
    }  # fmt: skip
    assert (trainer["workers"], trainer["versions"]) == (1, {})


def test_workers_of_a_fleet_are_found_by_name_and_few_are_told_as_they_are():
    fleet = [worker(number) for number in range(200)]
    found = workers_of(fleet, "ROLLOUT-19")
    assert [one["name"] for one in found["workers"]][:2] == ["rollout-19", "rollout-190"]
    assert found["workers_found"] == 11
    few = fleet[: MOST_WORKERS - 1]
    assert workers_of(few, "") == {"workers": few, "workers_found": len(few), "roles": []}


def test_the_advantage_of_an_episode_whose_turns_have_their_own_is_that_of_its_tokens():
    run = AgentRun(agent={"turn_rewards": True}, trainer={"batch_groups": 2, "advantage_scale": "none"})
    run.ask_all()
    assert {one["advantage"] for one in group_of(run.core, 0)["members"]} == {None}
    for episode in (0, 1):
        run.sample(0, episode, count=3)
        run.ask(0, episode)
        run.sample(0, episode, count=1)
        first, second = (1.0, 0.0) if episode else (0.0, 1.0)
        run.end(0, episode, 0.0, turn_rewards=((episode, 0, first), (episode, 1, second)))
    # by turn the returns are 1 and 1, then 0 and 1; those of the episodes would be 0 and 0
    shown = {one["member"]: one["advantage"] for one in group_of(run.core, 0)["members"]}
    assert shown == {0: 0.125, 1: -0.125}
