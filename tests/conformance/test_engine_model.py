"""What an engine computes, against plain forward passes of the same weights."""

import pytest
import torch
from rounding import LARGEST_FACTOR, MEAN_FACTOR, rounding, together
from subject import (
    CAPACITY,
    STOP,
    VOCABULARY,
    Subject,
    finish,
    generations,
    plain_logits,
    update,
    worst_error,
)
from subject import tokens as tokens_of

from workers.engines.interface import Engine

TOLERANCE = 2e-5  # of a logprob in float32; measured: 1e-6 to 4e-6. For bfloat16 see rounding
NORM = "model.layers.1.post_attention_layernorm.weight"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_drawn_from(
    model_subject: Subject, temperature: float
) -> None:
    sampled = finish(model_subject.engine(temperature=temperature), *(added := generations(6)))
    plain = model_subject.plain()
    errors = [worst_error(plain, g, sampled[g.key], temperature) for g in added]
    assert max(errors) < TOLERANCE


def test_under_top_k_and_top_p_they_are_those_of_the_cut_distribution(model_subject: Subject) -> None:
    engine = model_subject.engine(temperature=0.8, top_k=6, top_p=0.9)
    sampled = finish(engine, *(added := generations(6)))
    for generation in added:
        items = sampled[generation.key]
        logits = plain_logits(model_subject.plain(), generation, [item.token for item in items]) / 0.8
        for logits_V, item in zip(logits, items, strict=True):
            largest, order = logits_V.topk(6)
            probs = largest.softmax(-1)
            kept = [i for i in range(6) if probs[:i].sum() < 0.9]
            place = order.tolist().index(item.token)
            assert place in kept
            assert item.logprob == pytest.approx((probs[place] / probs[kept].sum()).log().item(), abs=1e-4)


def test_greedy_equals_generate(model_subject: Subject) -> None:
    sampled = finish(model_subject.engine(temperature=0.0), *(added := generations(5, budget=20)))
    for generation in added:
        prompt = torch.tensor([generation.prompt_tokens])
        wanted = model_subject.plain().generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20, pad_token_id=0
        )
        assert tokens_of(sampled)[generation.key] == wanted[0, prompt.shape[1] :].tolist()
        assert worst_error(model_subject.plain(), generation, sampled[generation.key]) < TOLERANCE


def test_the_frequencies_of_tokens_are_their_probabilities(model_subject: Subject) -> None:
    added = generations(400, budget=1, members=400)
    drawn = [items[0].token for items in finish(model_subject.engine(), *added).values()]
    probs = plain_logits(model_subject.plain(), added[0], [0])[0].softmax(-1)
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY)
    deviations = (counts - 400 * probs) / (400 * probs * (1 - probs)).sqrt().clamp(min=1.0)
    assert deviations.abs().max() < 4.5


def test_a_stop_token_is_the_last_token_of_its_response(model_subject: Subject) -> None:
    added = generations(12, budget=40)
    free = tokens_of(finish(model_subject.engine(), *added))
    sampled = finish(model_subject.engine(stops=True), *added)
    for key, items in sampled.items():
        where = free[key].index(STOP) if STOP in free[key] else 39
        assert [item.token for item in items] == free[key][: where + 1]
        last = "stop" if free[key][where] == STOP else "length"
        assert [item.ending for item in items] == [""] * where + [last]
    assert {items[-1].ending for items in sampled.values()} == {"stop", "length"}


def held_and_published_differ(engine: Engine, published: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are not those published, to the last bit."""
    held = engine.read_weights()
    assert held.keys() == published.keys()
    return [name for name in held if not torch.equal(held[name], published[name])]


def test_over_five_updates_logprobs_and_weights_are_those_published(model_subject: Subject) -> None:
    engine, added = model_subject.engine(), generations(3, budget=10)
    for version in range(6):
        published = model_subject.weights(seed=version)
        if version:
            engine.load_weights(version, published)
        sampled = finish(engine, *added)  # the same prompts: a stale prefix would be used here
        plain = model_subject.plain_under(published)
        assert max(worst_error(plain, g, sampled[g.key]) for g in added) < TOLERANCE, version
        assert held_and_published_differ(engine, published) == [], version


def test_in_half_precision_it_is_as_near_to_the_exact_logprobs_as_a_plain_forward_pass(
    model_subject: Subject,
) -> None:
    engine, added, found = model_subject.engine(dtype="bfloat16"), generations(12, budget=40), []
    for version in range(6):
        published = model_subject.weights("bfloat16", seed=version)
        if version:
            engine.load_weights(version, published)
        found.append(rounding(model_subject, published, finish(engine, *added), added))
        assert found[-1].mean_ratio < MEAN_FACTOR, (version, str(found[-1]))
        assert held_and_published_differ(engine, published) == [], version
    whole = together(found)
    print(f"bfloat16, {whole}, ratio of rms {max(one.mean_ratio for one in found):.2f} at worst")
    assert whole.largest_ratio < LARGEST_FACTOR, str(whole)


@pytest.mark.parametrize("fault", ["weights of the version before", "one norm of them", "temperature 0.95"])
def test_that_check_of_half_precision_sees_what_is_wrong(model_subject: Subject, fault: str) -> None:
    sampling = {"temperature": 0.95} if fault.startswith("temperature") else {}
    engine, added = model_subject.engine(dtype="bfloat16", **sampling), generations(12, budget=40)
    believed = model_subject.weights("bfloat16")
    newer = model_subject.weights("bfloat16", seed=1)
    if not sampling:
        believed |= newer if "before" in fault else {NORM: newer[NORM]}
    found = rounding(model_subject, believed, finish(engine, *added), added)
    assert found.mean_ratio > MEAN_FACTOR, str(found)


def test_what_runs_over_an_update_is_drawn_from_the_new_weights(model_subject: Subject) -> None:
    """The last norm does not touch the KV cache, so kept and recomputed KV give the same logprobs."""
    engine, generation = model_subject.engine(), generations(1, budget=20)[0]
    changed = model_subject.weights()
    changed["model.norm.weight"] = changed["model.norm.weight"] * 0.5
    engine.add(generation)
    before = [item for _ in range(8) for item in engine.step()]
    before += update(engine, 1, changed)
    after = finish(engine)[generation.key]
    first = worst_error(model_subject.plain(), generation, before)
    rest = plain_logits(
        model_subject.plain_under(changed), generation, [item.token for item in (*before, *after)]
    ).log_softmax(-1)[len(before) :]
    for logprobs_V, item in zip(rest, after, strict=True):
        assert item.logprob == pytest.approx(logprobs_V[item.token].item(), abs=TOLERANCE)
    assert first < TOLERANCE


def test_a_prompt_added_while_older_ones_run_over_an_update_uses_no_old_prefix(
    model_subject: Subject,
) -> None:
    engine, (old, new) = model_subject.engine(), generations(2, budget=12, members=2)
    changed = model_subject.weights(seed=9)
    engine.add(old)
    engine.step()
    update(engine, 1, changed)
    sampled = finish(engine, new)
    assert worst_error(model_subject.plain_under(changed), new, sampled[new.key]) < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_prompt_that_is_queued_over_an_update_uses_no_old_prefix(
    model_subject: Subject, temperature: float
) -> None:
    engine = model_subject.engine(temperature=temperature)
    *_, last = added = generations(CAPACITY + 1, budget=12, members=CAPACITY + 1)
    for generation in added:
        engine.add(generation)
    changed = model_subject.weights(seed=9)
    before = [*engine.step(), *update(engine, 1, changed)]
    after = finish(engine)[last.key]
    if all(item.key != last.key for item in before):  # an engine may have more room than it was asked for
        assert worst_error(model_subject.plain_under(changed), last, after, temperature) < TOLERANCE


@pytest.mark.parametrize(
    ("change", "tensor", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight", "missing, first model.norm.weight"),
        (lambda t: t.update(extra=torch.zeros(2)), "extra", "not weights of this model, first extra"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(5)}), "model.norm.weight",
         r"shape \(5,\); expected .*\(64,\)"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}), "model.norm.weight",
         "torch.int8"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_refused_by_name_and_change_nothing(
    model_subject: Subject, change, tensor: str, words: str
) -> None:
    engine, added = model_subject.engine(), generations(3)
    wanted = tokens_of(finish(engine, *added))
    tensors = model_subject.weights(seed=1)
    change(tensors)
    with pytest.raises(ValueError, match=tensor) as refusal:
        engine.load_weights(3, tensors)
    if model_subject.is_ours:
        refusal.match(words)
    assert engine.policy_version == 0
    assert tokens_of(finish(engine, *added)) == wanted
