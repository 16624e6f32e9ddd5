"""How long environments of simulated agents take."""

import pytest

from protocol.messages import Ask, Begin, EpisodeEnded, Segment, Turn
from workers.simulated import Environment, EpisodeLimits, SimulatedAgent

ENVIRONMENT = Environment(
    turns=4, turns_sigma=0.5, given_tokens=64, wait_s=2.0, sigma=1.0, start_s=1.0, failure_rate=0.0,
    hang_rate=0.0, divergence_rate=0.0, fork_rate=0.0, saved_bytes=0, first_tokens=32,
)  # fmt: skip
LIMITS = EpisodeLimits(turns=8, turn_tokens=128, tokens=10_000, trajectories=1)


KEYS = [(group, episode, 1) for group in (3, 4) for episode in range(4)]


def waits(keys, *, seed=0):
    """Seconds of all waits of these episodes, begun in this order, of which each turn takes no time."""
    agent = SimulatedAgent(ENVIRONMENT, LIMITS, seed=seed, at_once=64, attach_s=0.0)
    agent.wake(0.0)
    for group, episode, trial in keys:
        agent.handle(0.0, Begin(group, episode, trial, seed=group, attempt=0, episodes=4))
    since, found = dict.fromkeys(keys, 0.0), {key: [] for key in keys}
    while (due := agent.next_wake_s()) is not None:
        for said in agent.wake(due):
            assert isinstance(said, Ask | EpisodeEnded)
            key = said.group, said.episode, said.trial
            found[key].append(due - since[key])
            since[key] = due
            if isinstance(said, Ask):
                agent.handle(due, Turn(*key, said.number, said.member, said.attempt, "stop", ()))
    return found


def test_an_episode_waits_equally_long_whatever_else_the_worker_does():
    assert waits(KEYS) == waits(KEYS[::-1])
    assert waits(KEYS)[KEYS[0]] == pytest.approx(waits(KEYS[:1])[KEYS[0]])


def test_each_wait_is_another():
    found = [wait for one in waits(KEYS).values() for wait in one]
    assert len({round(wait, 9) for wait in found}) == len(found) > 2 * len(KEYS)


def test_the_policy_says_no_more_than_it_may_in_an_episode():
    environment = ENVIRONMENT._replace(turns=40, fork_rate=0.5)
    limits = LIMITS._replace(turns=64, trajectories=4, sampled=300)
    agent = SimulatedAgent(environment, limits, seed=0, at_once=64, attach_s=0.0)
    agent.wake(0.0)
    agent.handle(0.0, Begin(0, 0, 1, seed=5, attempt=0, episodes=1))
    said, ending = 0, ""
    while (due := agent.next_wake_s()) is not None:
        asked = agent.wake(due)
        promised = sum(ask.max_new_tokens for ask in asked if isinstance(ask, Ask))
        assert said + promised <= 300
        for ask in asked:
            if isinstance(ask, EpisodeEnded):
                ending = ask.ending
                continue
            count = ask.max_new_tokens - 10 if ask.max_new_tokens > 10 else 1
            said += count
            segments = (Segment(ask.attempt + 1, 0, count),)
            agent.handle(due, Turn(*ask_key(ask), ask.number, ask.member, ask.attempt + 1, "stop", segments))
    assert (said, ending) == (300, "tokens")


def ask_key(ask):
    return ask.group, ask.episode, ask.trial


def test_another_seed_waits_otherwise():
    assert waits(KEYS) != waits(KEYS, seed=1)


def test_what_it_says_of_its_environments_is_what_they_take():
    agent = SimulatedAgent(ENVIRONMENT, LIMITS, seed=0, at_once=64, attach_s=0.0)
    for key, found in waits(KEYS).items():
        said = [agent.takes_s(key, asked, 2.0 if asked else 1.0) for asked in range(len(found))]
        assert found == pytest.approx(said)
