"""What every rollout engine does with its generations, whatever it computes them with."""

import random
from dataclasses import replace

import pytest
from subject import (
    CAPACITY,
    CONTEXT,
    MOST_STEPS,
    PROMPT_TOKENS,
    VOCABULARY,
    Subject,
    finish,
    generations,
    resumed,
    update,
)
from subject import tokens as tokens_of

from workers.engines.interface import Generation

BLOCK = 32  # tokens; the largest block of a KV cache that is worth sharing here


def test_a_new_engine_is_at_version_0(subject: Subject) -> None:
    subject.engine()
    assert type(subject.first_version) is int
    assert subject.first_version == 0, "the model directory has the weights of version 0"


def test_a_response_ends_with_its_budget_on_the_very_token(subject: Subject) -> None:
    added = [replace(g, max_new_tokens=1 + 3 * i) for i, g in enumerate(generations(6))]
    sampled = finish(subject.engine(), *added)
    for generation in added:
        endings = [item.ending for item in sampled[generation.key]]
        assert endings == [""] * (generation.max_new_tokens - 1) + ["length"]


def test_a_step_samples_at_most_one_token_of_a_generation_and_none_after_its_end(subject: Subject) -> None:
    engine, ended = subject.engine(), set()
    for generation in generations(7, budget=6):
        engine.add(generation)
    while engine.is_busy():
        sampled = engine.step()
        keys = [item.key for item in sampled]
        assert len(keys) == len(set(keys))
        assert not ended & set(keys)
        ended |= {item.key for item in sampled if item.ending}
    assert len(ended) == 7


def test_every_token_is_one_of_the_vocabulary_with_a_logprob_of_at_most_zero(subject: Subject) -> None:
    sampled = finish(subject.engine(), *generations(5))
    items = [item for items in sampled.values() for item in items]
    assert all(0 <= item.token < VOCABULARY and -100 < item.logprob <= 1e-6 for item in items)
    assert {type(item.token) for item in items} == {int}
    assert {type(item.logprob) for item in items} == {float}


def test_no_more_than_the_capacity_run_at_once_first_come_first_served(subject: Subject) -> None:
    engine, started = subject.engine(), []
    assert engine.capacity == CAPACITY
    assert engine.kv_tokens >= CAPACITY * PROMPT_TOKENS
    added = generations(9, budget=5)
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        sampled = engine.step()
        assert len(sampled) <= CAPACITY
        started += [item.key for item in sampled if item.key not in started]
        assert engine.load().running <= CAPACITY
    assert started == [generation.key for generation in added]


def test_the_load_counts_what_runs_and_names_what_waits(subject: Subject) -> None:
    engine, added = subject.engine(), generations(7, budget=5)
    for generation in added:
        engine.add(generation)
    live = {generation.key for generation in added}
    assert engine.load().running + engine.load().waiting == 7
    while engine.is_busy():
        live -= {item.key for item in engine.step() if item.ending}
        load = engine.load()
        assert load.running + load.waiting == len(live)
        assert len(load.queued) == load.waiting
        assert set(load.queued) <= live
        assert load.resident_tokens >= PROMPT_TOKENS * (load.running > 0)


def test_totals_never_fall_and_steps_that_decode_are_counted(subject: Subject) -> None:
    engine, before = subject.engine(), subject.engine().load()
    count = steps = 0
    for generation in generations(6, budget=8):
        engine.add(generation)
    while engine.is_busy():
        count, steps, load = count + len(engine.step()), steps + 1, engine.load()
        for field in (
            "decode_steps",
            "decode_tokens",
            "decode_s",
            "prefill_tokens",
            "prefill_s",
            "decode_context",
        ):
            assert getattr(load, field) >= getattr(before, field), field
        before = load
    start = subject.engine().load()
    assert start == before
    finish(engine, *generations(3, budget=9))
    after = engine.load()
    assert 8 <= after.decode_steps - start.decode_steps <= 9
    assert 24 <= after.decode_tokens - start.decode_tokens <= 27
    assert after.decode_context - start.decode_context > 24 * PROMPT_TOKENS
    assert after.decode_s > start.decode_s


def test_an_idle_engine_samples_nothing_and_holds_nothing(subject: Subject) -> None:
    engine = subject.engine()
    finish(engine, *generations(3))
    assert not engine.is_busy()
    assert engine.step() == []
    load = engine.load()
    assert (load.running, load.waiting, load.resident_tokens, load.queued) == (0, 0, 0, ())


def test_aborted_generations_are_forgotten_and_the_others_go_on_unharmed(subject: Subject) -> None:
    engine, added = subject.engine(temperature=0.0), generations(8, budget=16)
    wanted = tokens_of(finish(engine, *added))
    got: dict = {}
    for generation in added:
        engine.add(generation)
    for gone in ([], [0, 5], [2, 7]):
        engine.abort([added[i].key for i in gone] + [(99, 0, 0)])
        for _ in range(3):
            for item in engine.step():
                got.setdefault(item.key, []).append(item.token)
    after = tokens_of(finish(engine))
    assert not after.keys() & {added[i].key for i in (0, 2, 5, 7)}
    for i in (1, 3, 4, 6):
        assert got.get(added[i].key, []) + after[added[i].key] == wanted[added[i].key]


def test_an_abort_makes_room_for_those_that_wait(subject: Subject) -> None:
    engine, added = subject.engine(), generations(CAPACITY + 2, budget=50)
    for generation in added:
        engine.add(generation)
    for _ in range(3):
        engine.step()
    engine.abort([generation.key for generation in added[:CAPACITY]])
    last = {generation.key for generation in added[CAPACITY:]}
    while not last <= {item.key for item in engine.step()}:
        assert engine.is_busy()
    engine.abort(list(last))
    assert not engine.is_busy()
    assert engine.step() == []


def test_an_ended_or_aborted_key_may_come_again(subject: Subject) -> None:
    engine, generation = subject.engine(), generations(1, budget=6)[0]
    engine.add(generation)
    engine.step()
    engine.abort([generation.key])
    first = finish(engine, generation)
    engine.abort([generation.key])  # it has ended by itself
    assert tokens_of(finish(engine, generation)) == tokens_of(first)


def test_a_resumed_response_samples_only_what_is_left_of_it(subject: Subject) -> None:
    whole = generations(3, budget=10)
    first = tokens_of(finish(subject.engine(), *whole))
    rest = finish(subject.engine(), *(resumed(g, first[g.key][:i]) for i, g in enumerate(whole, 7)))
    assert [len(rest[g.key]) for g in whole] == [3, 2, 1]
    assert all(items[-1].ending == "length" for items in rest.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_interrupted_at_random_points_a_response_equals_the_uninterrupted(
    subject: Subject, temperature: float
) -> None:
    engine, draw = subject.engine(temperature=temperature), random.Random(5)
    if temperature and not engine.continues_noise:
        pytest.skip(f"{subject.name} draws new noise where it goes on; at temperature 0 it continues exactly")
    added = generations(4, budget=40, members=2)
    wanted = tokens_of(finish(engine, *added))
    responses: dict = {generation.key: [] for generation in added}
    points = {generation.key: sorted(draw.sample(range(1, 40), 10)) for generation in added}
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        for item in engine.step():
            responses[item.key].append(item.token)
        for generation in added:
            done, mine = responses[generation.key], points[generation.key]
            if mine and len(done) == mine[0]:
                del mine[0]
                engine.abort([generation.key])
                engine.add(resumed(generation, done))
    assert responses == wanted
    assert not any(points.values())


def test_equal_seeds_give_equal_responses_and_other_seeds_others(subject: Subject) -> None:
    engine, added = subject.engine(), generations(4, budget=20, members=4)
    first = tokens_of(finish(engine, *added))
    assert tokens_of(finish(engine, *added)) == first
    assert len(set(map(tuple, first.values()))) == 4


def test_what_is_sampled_does_not_depend_on_the_rest_of_the_batch(subject: Subject) -> None:
    engine, added = subject.engine(), generations(6, budget=10, members=2)
    together = tokens_of(finish(engine, *added))
    assert tokens_of(finish(engine, *reversed(added))) == together
    alone: dict = {}
    for generation in added[:3]:
        alone |= tokens_of(finish(engine, generation))
    assert alone == {generation.key: together[generation.key] for generation in added[:3]}


def test_siblings_share_the_prefill_of_their_prompt(subject: Subject) -> None:
    engine = subject.engine()
    before = engine.load().prefill_tokens
    added = generations(6, members=6, seed=77)
    finish(engine, *(replace(g, key=(77, i, 0), max_new_tokens=6 + i) for i, g in enumerate(added)))
    spent = engine.load().prefill_tokens - before
    assert spent <= PROMPT_TOKENS + 5 * (PROMPT_TOKENS - BLOCK)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_new_tokens": CONTEXT}, f"40 prompt . 0 response . {CONTEXT} new = {CONTEXT + 40} tokens"),
        ({"response_tokens": [6] * CONTEXT}, f"context is {CONTEXT}"),
        ({"max_new_tokens": 0}, "budget of 0"),
        ({"prompt_tokens": []}, "0 prompt tokens"),
        ({"prompt_tokens": [6, VOCABULARY]}, f"ids from 6 to {VOCABULARY}"),
        ({"response_tokens": [-1]}, "ids from -1"),
        ({"key": (0, 0, 0)}, "here already"),
    ],
)
def test_a_generation_that_can_never_run_is_refused_in_words(
    subject: Subject, wrong: dict, words: str
) -> None:
    engine, here = subject.engine(), generations(1, budget=5)[0]
    engine.add(here)
    with pytest.raises(ValueError, match=words if subject.is_ours else "."):
        engine.add(replace(here, **{"key": (1, 0, 0)} | wrong))
    assert finish(engine).keys() == {here.key}
    most = Generation((2, 0, 0), here.prompt_tokens, [], CONTEXT - PROMPT_TOKENS, 0)
    assert len(finish(engine, most)[most.key]) == CONTEXT - PROMPT_TOKENS


def test_new_weights_lose_nothing_that_runs_or_waits(subject: Subject) -> None:
    engine, added, count = subject.engine(), generations(6, budget=9), 0
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        count += len(engine.step())
        version = engine.policy_version + 1
        count += len(update(engine, version, subject.weights(seed=version)))
        assert engine.policy_version == version
    assert count == 6 * 9


def test_a_busy_engine_samples_within_a_few_steps(subject: Subject) -> None:
    engine = subject.engine()
    for generation in generations(5, budget=3):
        engine.add(generation)
    steps = 0
    while engine.is_busy():
        while not engine.step() and engine.is_busy():
            steps += 1
            assert steps < min(MOST_STEPS, 20)
