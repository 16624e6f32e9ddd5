"""Agent workers with less room than a group, and which clock ended an episode."""

import pytest

from controller.core.commands import Warn
from controller.core.events import Tick
from protocol.messages import Attach, Control, Ready
from tests.support.agent_run import AgentRun
from tests.unit.controller.core.decisions.supply.test_episodes import PATIENT


def test_a_worker_with_room_for_less_than_a_group_takes_one_all_the_same_and_no_more():
    run = AgentRun(capacity=1)
    assert sorted(run.begins) == [(0, 0), (0, 1)]


def test_groups_that_lost_half_of_their_places_to_each_other_are_made_ready_one_after_the_other():
    """Four are prepared, the last environment of each is slow, and one of two workers goes for good."""
    run = AgentRun(prompts=8, agents=2, capacity=4, agent={"workers": 0, "prepare_groups": 4})
    for group, episode in sorted(run.begins):
        if episode == 0:
            run.ask(group, episode)
    run.lose("agent-1")
    (worker,) = run.core.state.registry.agents()
    assert {(0, 0), (0, 1)} <= worker.episodes.keys(), "the oldest is whole, so that it can start"
    assert run.counts["episodes/put_back"]


def test_no_prompt_is_prepared_in_a_pause():
    run = AgentRun(prompts=6, capacity=4, agent={"prepare_groups": 4})
    run.ask_all()
    run.say("operator", Control("pause", "", "anna@here", "the sandbox is down"))
    for episode in (0, 1):
        run.sample(0, episode)
        run.end(0, episode)
    assert sorted(run.begins) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    run.say("operator", Control("unpause", "", "anna@here", ""))
    assert {(2, 0), (2, 1)} <= run.begins.keys()


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"turn_timeout_s": 30}, "(agent.turn_timeout_s)"),
        ({"turn_timeout_s": 30, "episode_timeout_s": 10}, "(agent.episode_timeout_s)"),
    ],
)
def test_the_limit_that_a_silent_environment_has_passed_is_named(limits, key):
    run = AgentRun(agent={"on_timeout": "retry", **limits}, **PATIENT)
    run.ask_all()
    run.sample()
    commands = run.do(Tick(), at=run.core.next_deadline())
    told = [command.text for command in commands if isinstance(command, Warn)]
    assert any("was silent for" in text and key in text for text in told), told


class Seen(dict):
    """The groups of a run, which counts how often one is looked up."""

    count = 0

    def __getitem__(self, key):
        self.count += 1
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.count += 1
        return super().get(key, default)


def looks_at_groups(episodes: int) -> int:
    """How often groups are looked up while a worker takes so many episodes that another has lost."""
    many = {"agent": {"workers": 0, "prepare_groups": episodes // 2, "concurrency": episodes}}
    run = AgentRun(prompts=episodes, agents=0, **many)
    run.join("agent-0", episodes)
    assert len(run.begins) == episodes
    run.lose("agent-0")
    run.begins.clear()
    run.say("agent-1", Attach("agent", "agent-1", 1, "here"))
    run.core.state.groups = seen = Seen(run.core.state.groups)
    run.say("agent-1", Ready(0, episodes, 0))
    assert len(run.begins) == episodes
    assert len(run.core.state.unbegun) == 0
    return seen.count


def test_episodes_that_begin_at_once_are_looked_at_a_few_times_each_however_many_they_are():
    few, many = looks_at_groups(32), looks_at_groups(256)
    assert many < 1.5 * 256 / 32 * few


def test_the_longest_response_of_a_source_is_not_for_turns_of_agents():
    """Else an instance that hands a turn back which was called off meanwhile would be taken for a liar."""
    sources = [{"path": "a.jsonl", "max_response_tokens": 2}]
    run = AgentRun(data={"sources": sources})
    assert run.core.state.longest_response(run.core.state.groups[0]) == 10
