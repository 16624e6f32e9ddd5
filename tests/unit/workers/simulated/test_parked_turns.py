"""What the simulated engine keeps of turns that have ended."""

import random

import pytest

from workers.simulated import Request, SimulatedEngine, StepCost
from workers.simulated.physics import blocks


def engine(*, kv_blocks=4000, parks_turns=True) -> SimulatedEngine:
    return SimulatedEngine(
        StepCost(), rows=100, kv_blocks=kv_blocks, token_budget=8192, prompt_tokens=64,
        parks_turns=parks_turns,
    )  # fmt: skip


def play(one, group, attempt, *, resident, limit, now=0.0):
    """A turn that runs alone; when it ends."""
    one.advance(now)
    one.add(now, Request((group, 0, attempt), resident=resident, limit=limit, is_redone=False))
    while one.requests:
        one.advance(now)
        now = one.next_change_s() or now
    return now


@pytest.mark.parametrize("parks", [False, True])
def test_a_turn_is_charged_with_the_prefill_of_what_is_not_there(parks):
    one = engine(parks_turns=parks)
    now = play(one, 1, 1, resident=1000, limit=50)
    assert one.prefill_tokens == 1000
    assert one.parked_tokens == (1049 if parks else 0)
    play(one, 1, 2, resident=1150, limit=50, now=now)
    assert one.prefill_tokens == 1000 + (101 if parks else 1150)
    assert one.reused_tokens == (1049 if parks else 0)


def test_the_oldest_goes_where_something_runs_and_a_pull_empties_all():
    one = engine(kv_blocks=140)
    now = 0.0
    for group in (1, 2, 3):
        now = play(one, group, 1, resident=800, limit=20, now=now)
    assert one.parked_tokens == 2 * 819  # 52 blocks each: the third took the place of the first
    before = one.prefill_tokens
    now = play(one, 2, 2, resident=830, limit=20, now=now)
    assert one.prefill_tokens - before == 11
    before = one.prefill_tokens
    now = play(one, 1, 2, resident=830, limit=20, now=now)
    assert one.prefill_tokens - before == 830
    one.clear(now, now + 1)
    assert one.parked_tokens == 0
    before = one.prefill_tokens
    play(one, 2, 3, resident=860, limit=20, now=now + 1)
    assert one.prefill_tokens - before == 860


@pytest.mark.parametrize("seed", range(4))
def test_what_runs_and_what_is_parked_never_exceeds_the_cache(seed):
    rng = random.Random(seed)
    one, now, contexts = engine(kv_blocks=300), 0.0, [rng.randint(50, 400) for _ in range(12)]
    for attempt in range(1, 60):
        group = rng.randrange(12)
        if not any(tag[0] == group for tag in one.requests):
            one.advance(now)
            one.add(now, Request((group, 0, attempt), resident=contexts[group], limit=30, is_redone=False))
        now += rng.uniform(0.0, 0.6)
        for ended in one.advance(now):
            contexts[ended.group] = 100 if contexts[ended.group] > 900 else contexts[ended.group] + 60
        assert one.parked_tokens == sum(one._parked.values())
        assert one._parked_blocks == sum(map(blocks, one._parked.values()))
        one._trim()
        assert one._used + one._parked_blocks <= one.kv_blocks
    assert one.reused_tokens > 0
