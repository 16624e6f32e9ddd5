"""The simulated engine against a loop over single steps, and its promises about KV, prefixes and times."""

import random

import pytest

from workers.simulated import Request, SimulatedEngine, StepCost
from workers.simulated.physics import BLOCK, blocks

COST = StepCost()


def engine(
    *, rows=1000, kv_blocks=30_900, token_budget=8192, prompt_tokens=512, cost=COST
) -> SimulatedEngine:
    return SimulatedEngine(
        cost, rows=rows, kv_blocks=kv_blocks, token_budget=token_budget, prompt_tokens=prompt_tokens
    )


def request(group, *, member=0, resident=512, limit=100, is_redone=False) -> Request:
    return Request((group, member, 1), resident=resident, limit=limit, is_redone=is_redone)


def drain(one: SimulatedEngine, now=0.0) -> list[tuple[float, int]]:
    """(time, group) of all endings."""
    found = []
    for _ in range(100_000):
        found += [(now, ended.group) for ended in one.advance(now)]
        following = one.next_change_s()
        if following is None:
            return found
        assert following >= now
        now = following
    raise AssertionError("the engine does not come to an end")


def test_one_request_takes_its_prefill_and_one_step_for_each_further_token():
    one = engine()
    one.add(0.0, request(1, limit=100))
    ((end, _),) = drain(one)
    prefill = 2.4e-9 * 512**2 + max(0.0069, 0.0027 + 0.000133 * 512)
    decode = sum(0.0028 + 8.7e-8 * (512 + i) + 0.0069 for i in range(1, 100))
    assert end == pytest.approx(prefill + decode, rel=1e-12)
    assert (one.decode_steps, one.decode_tokens, one.prefill_tokens) == (99, 99, 512)
    assert one.decode_context == sum(512 + i for i in range(1, 100))
    assert one.decode_s + one.prefill_s == pytest.approx(end)


def test_a_chunk_pays_for_its_attention_to_the_prefix():
    whole = COST.mixed_s([(4000, 0)], 0, 0) - (0.0027 + 0.000133 * 4000)
    halves = [COST.mixed_s([(2000, prefix)], 0, 0) - (0.0027 + 0.000133 * 2000) for prefix in (0, 2000)]
    assert sum(halves) == pytest.approx(whole)
    assert halves[1] == pytest.approx(3 * halves[0])


@pytest.mark.parametrize("seed", range(8))
def test_the_closed_form_counts_the_steps_that_a_loop_counts(seed):
    rng = random.Random(seed)
    running, context, seconds = rng.randint(1, 200), rng.randint(0, 400_000), rng.uniform(0, 300)
    steps, spent = 0, 0.0
    while spent + COST.stretch_s(running, context + running * steps, 1) <= seconds:
        spent += COST.stretch_s(running, context + running * steps, 1)
        steps += 1
    assert abs(COST.steps_within(running, context, seconds) - steps) <= (abs(seconds - spent) < 1e-9)
    assert COST.stretch_s(running, context, steps) == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_looking_often_changes_nothing(seed):
    def play(looks: list[float]) -> list[tuple[float, int]]:
        rng, one, found = random.Random(seed), engine(kv_blocks=800), []
        arrivals = sorted((rng.uniform(0, 20), group) for group in range(30))
        limits = [rng.randint(1, 900) for _ in range(30)]
        times = sorted([*(at for at, _ in arrivals), *looks])
        for now in times:
            while (following := one.next_change_s()) is not None and following <= now:
                found += [(round(following, 6), ended.group) for ended in one.advance(following)]
            found += [(round(now, 6), ended.group) for ended in one.advance(now)]
            for at, group in arrivals:
                if at == now:
                    one.add(now, request(group, limit=limits[group]))
            one.advance(now)
        return [*found, *((round(at, 6), group) for at, group in drain(one, times[-1]))]

    seldom, often = play([20.0]), play([20.0, *(i * 0.0437 for i in range(450))])
    assert [group for _, group in seldom] == [group for _, group in often]
    assert [at for at, _ in seldom] == pytest.approx([at for at, _ in often], abs=1e-5)


def test_what_arrives_in_the_middle_of_a_step_waits_for_its_end():
    one = engine()
    one.add(0.0, request(1, limit=1000))
    one.advance(0.0)
    prefill = one.next_change_s()
    assert prefill is not None
    now = prefill + 2.5 * COST.stretch_s(1, 513, 1)
    one.advance(now)
    one.add(now, request(2))
    one.advance(now)
    assert one.running == 1
    boundary = one.next_change_s()
    assert boundary == pytest.approx(prefill + COST.stretch_s(1, 513, 3))
    one.advance(boundary)
    assert one.running == 2


def test_an_interrupt_returns_the_tokens_of_whole_steps():
    one = engine()
    one.add(0.0, request(1, limit=1000))
    one.advance(0.0)
    prefill = one.next_change_s()
    assert prefill is not None
    now = prefill + COST.stretch_s(1, 513, 40) + 1e-6
    one.advance(now)
    taken = one.remove(now, (1, 0, 1))
    assert taken is not None
    assert one.tokens(taken) == 41
    assert one.running == 0
    assert one.remove(now, (1, 0, 1)) is None


def test_the_youngest_is_preempted_when_the_kv_overflows_and_is_prefilled_again():
    one = engine(kv_blocks=2 * blocks(513) + 6)  # room for six more blocks together
    one.add(0.0, request(1, limit=90))
    one.advance(0.0)
    one.advance(one.next_change_s())
    one.add(0.2, request(2, limit=90))
    endings = drain(one, 0.2)
    assert [group for _, group in endings] == [1, 2]
    assert one.preemptions == 1
    assert 512 < one.reprefill_tokens < 512 + 90
    assert one._used == 0


@pytest.mark.parametrize("seed", range(6))
def test_blocks_never_exceed_the_cache_and_add_up(seed):
    rng = random.Random(seed)
    one, now = engine(kv_blocks=400, rows=12), 0.0
    here: list[Request] = []
    for i in range(150):
        now += rng.expovariate(3.0)
        one.advance(now)
        if rng.random() < 0.7:
            here.append(request(i // 3, member=i % 3, limit=rng.randint(1, 700)))
            one.add(now, here[-1])
        elif here:
            one.remove(now, here.pop(rng.randrange(len(here))).tag)
        one.advance(now)
        expected, groups = 0, set()
        for resident in one._resident:
            total = resident.resident + one.tokens(resident) + (not resident.is_decoding)
            expected += blocks(total) - (512 // BLOCK if resident.group in groups else 0)
            groups.add(resident.group)
        assert one._used == expected <= 400
        assert one.running <= 12
    drain(one, now)
    assert one.requests == {}


@pytest.mark.parametrize("order", [(512, 50), (50, 512), (50, 512, 20, 512)])
def test_what_is_shorter_than_the_prompt_of_its_group_shares_none_of_it(order):
    one = engine(kv_blocks=400)
    for member, resident in enumerate(order):
        one.add(0.0, request(7, member=member, resident=resident, limit=40 + 9 * member))
    one.advance(0.0)
    here = list(one._resident)
    whole = [held for held in here if held.resident == 512]
    assert len(here) == len(order)
    while (now := one.next_change_s()) is not None:
        left = [held for held in here if held in one._resident]
        saved = 512 // BLOCK * max(0, sum(held in left for held in whole) - 1)
        totals = [held.resident + one.tokens(held) + (not held.is_decoding) for held in left]
        assert one._used == sum(map(blocks, totals)) - saved
        one.advance(now)
    assert (one._used, one._prefixes) == (0, {})
    assert one.prefill_tokens == sum(order) - 512 * (len(whole) - 1) + len(whole) - 1


def test_siblings_prefill_their_prompt_once_while_one_of_them_is_resident():
    one = engine()
    for member in range(4):
        one.add(0.0, request(7, member=member, limit=50))
    drain(one)
    assert one.prefill_tokens == 512 + 3  # the last token of a shared prompt is computed by each
    one.add(100.0, request(7, member=9))
    drain(one, 100.0)
    assert one.prefill_tokens == 2 * 512 + 3


def test_a_pull_empties_the_cache_and_keeps_the_order():
    one = engine()
    for group in (1, 2):
        one.add(0.0, request(group, limit=500))
    one.advance(0.0)
    one.advance(1.0)
    one.clear(1.0, 4.0)
    assert (one.running, [waiting.group for waiting in one.queue]) == (0, [1, 2])
    assert one.next_change_s() == 4.0
    assert one.advance(3.9) == []
    endings = drain(one, 4.0)
    assert [group for _, group in endings] == [1, 2]
    assert one.reprefill_tokens > 2 * 512


def test_half_the_speed_takes_twice_the_time():
    times = []
    for speed in (1.0, 0.5):
        one = engine()
        one.speed = speed
        one.add(0.0, request(1))
        times.append(drain(one)[0][0])
    assert times[1] == pytest.approx(2 * times[0])


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks_beside_the_decoders():
    one = engine(token_budget=256)
    one.add(0.0, request(1, limit=40))
    drain(one)
    alone_s = one.prefill_s
    assert one.prefill_tokens == 512
    assert alone_s > 2 * (0.0027 + 0.000133 * 256)
