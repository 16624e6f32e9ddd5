"""The bound of runs whose episodes wait for environments."""

import pytest

from benchmarks.agent_bound import Batch, Played, alone_s, demand_of, share_of_bound
from benchmarks.agent_homes import PROMPT, config_for
from workers.simulated import Request, SimulatedEngine, StepCost


def engine_s(episode: Played) -> float:
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
    "episode",
    [Played((1,), (), 0.0), Played((100, 1, 400), (300, 1), 0.0), Played((7,) * 5, (2000,) * 4, 0.0)],
)
def test_an_episode_alone_takes_what_an_idle_engine_takes_for_it(episode):
    assert alone_s(episode, StepCost(), PROMPT) == pytest.approx(engine_s(episode), rel=1e-9)


SHORT, LONG = Played((50,) * 4, (200,) * 3, 8.0), Played((50,) * 16, (200,) * 15, 90.0)


def batches(period_s, episodes, count=8):
    return [Batch(number * period_s, episodes) for number in range(count)]


@pytest.mark.parametrize("bound", [1, 3])
def test_the_longest_episode_of_a_batch_has_the_window_of_the_bound(bound):
    config = config_for(0.6, bound, 10, "price")
    episodes = [*[SHORT] * 63, LONG]
    lost_s = demand_of(config, episodes).lost_s
    window_s = LONG.waited_s + alone_s(LONG, StepCost(), PROMPT) + lost_s
    assert lost_s > config.simulation.pull_s
    share = share_of_bound(config, batches(window_s / (bound + 1), episodes), bound + 1)
    assert share == pytest.approx(1.0)
    share = share_of_bound(config, batches(2 * window_s / (bound + 1), episodes), bound + 1)
    assert share == pytest.approx(0.5)


def test_each_batch_counts_with_its_own_longest_episode():
    config = config_for(0.6, 1, 10, "price")
    every, half = batches(100.0, [LONG] * 64), batches(100.0, [LONG] * 64)
    half[-1] = half[-1]._replace(episodes=[SHORT] * 64)
    assert share_of_bound(config, half, 4) < 0.9 * share_of_bound(config, every, 4)


def test_where_nothing_waits_instances_decide():
    config = config_for(0.0, 3, 10, "price")
    crowd = [Played((500,) * 16, (1,) * 15, 0.0)] * 64
    alone = alone_s(crowd[0], StepCost(), PROMPT)
    assert 200 * share_of_bound(config, batches(50.0, crowd), 4) > alone + demand_of(config, crowd).lost_s
