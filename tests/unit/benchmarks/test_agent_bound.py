"""The bound of runs whose episodes wait for environments."""

import pytest

from benchmarks.agent_bound import Drawn, alone_s, bound_with_waits, drawn
from benchmarks.agent_homes import PROMPT, config_for
from workers.simulated import Request, SimulatedEngine, StepCost


def engine_s(episode: Drawn) -> float:
    """Seconds that its turns take on a simulated engine that is idle and has the KV of its prompt."""
    engine = SimulatedEngine(
        StepCost(), rows=8, kv_blocks=4000, token_budget=8192, prompt_tokens=PROMPT, parks_turns=True
    )
    resident, now, begin = PROMPT - 1, 0.0, 0.0
    turns = [(0, 1), *zip((1, *episode.given), episode.sampled, strict=True)]
    for attempt, (given, sampled) in enumerate(turns):
        resident += given
        begin = now if attempt == 1 else begin
        engine.add(now, Request((0, 0, attempt), resident=resident, limit=sampled, is_redone=False))
        while engine.requests:
            engine.advance(now)
            now = engine.next_change_s() or now
        resident += sampled if attempt else 0
    return now - begin


@pytest.mark.parametrize(
    "episode", [Drawn((1,), (), 0.0), Drawn((100, 1, 400), (300, 1), 0.0), Drawn((7,) * 5, (2000,) * 4, 0.0)]
)
def test_an_episode_alone_takes_what_an_idle_engine_takes_for_it(episode):
    assert alone_s(episode, StepCost(), PROMPT) == pytest.approx(engine_s(episode), rel=1e-9)


def test_where_waits_decide_a_wider_window_admits_as_much_more():
    one, three = (bound_with_waits(config_for(0.8, bound, 10, "price")) for bound in (1, 3))
    assert three == pytest.approx(2 * one)


def test_the_longer_environments_take_the_lower_it_is():
    found = [bound_with_waits(config_for(share, 1, 10, "price")) for share in (0.0, 0.3, 0.6, 0.8)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 4 * found[-1]


def test_episodes_are_drawn_as_the_configuration_says():
    config = config_for(0.6, 1, 10, "price")
    episodes = drawn(config, 2000)
    turns = sorted(len(one.sampled) for one in episodes)
    assert turns[1000] == config.simulation.environment.turns
    assert turns[-1] == config.agent.max_turns
    assert all(len(one.given) == len(one.sampled) - 1 for one in episodes)
    waits = sum(one.waited_s for one in episodes) / sum(turns)
    assert waits == pytest.approx(1.5 * 0.6 / 0.4, rel=0.05)  # of TURN_S at instances
