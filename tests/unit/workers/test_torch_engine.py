"""The embedded engine against plain forward passes of the same model."""

import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    BloomConfig,
    GPT2Config,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from protocol.errors import ConfigError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.engines.interface import Generation
from workers.engines.torch import TorchEngine, make_engine
from workers.engines.torch import engine as engine_module
from workers.model import load_causal_lm, stop_tokens

VOCABULARY, CONTEXT, STOP = 24, 96, 1
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": STOP}
CONFIGS = {
    "qwen3": Qwen3Config(
        **SIZES, **COMMON, head_dim=8, intermediate_size=48, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    ),
    "qwen3, other layers sliding": Qwen3Config(
        **{**SIZES, "num_hidden_layers": 3}, **COMMON, head_dim=8, intermediate_size=48,
        max_position_embeddings=CONTEXT, use_sliding_window=True, sliding_window=6, max_window_layers=1,
    ),
    "mistral, all layers sliding": MistralConfig(
        **SIZES, **COMMON, intermediate_size=48, max_position_embeddings=CONTEXT, sliding_window=6
    ),
    "gpt2": GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT),
}  # fmt: skip


def make_model(name="qwen3", seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    make_model().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def model(directory):
    """The plain model, which nobody changes."""
    return load_causal_lm(directory, dtype="float32", device="cpu")


@pytest.fixture
def make(model):
    """An engine for a copy of the plain model, without stop tokens unless asked."""

    def build(max_running=4, *, stops=(), **sampling):
        return TorchEngine(deepcopy(model), make_rollout(max_running, **sampling), stop_tokens=stops)

    return build


def make_rollout(max_running=4, **sampling):
    return RolloutSettings(
        max_running=max_running,
        max_prompt_tokens=20,
        max_response_tokens=30,
        sampling=SamplingSettings(**sampling),
    )


def generations(count, *, budget=12, seed=0, members=1):
    """`count` generations of groups of `members`, prompts of 1 to 18 tokens."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(2, VOCABULARY) for _ in range(draw.randint(1, 18))] for _ in range(count)]
    return [
        Generation(
            (index // members, index % members, 0), prompts[index // members], [], budget, 1000 + index
        )
        for index in range(count)
    ]


def finish(engine, *added):
    """Run to the end; what was sampled, by key."""
    for generation in added:
        engine.add(generation)
    sampled = {}
    while engine.is_busy():
        for item in engine.step():
            sampled.setdefault(item.key, []).append(item)
    return sampled


def tokens(sampled):
    return {key: [item.token for item in items] for key, items in sampled.items()}


def plain_logits(model, prompt, response):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


def worst_error(model, generation, items, temperature=1.0):
    """Largest difference between reported logprobs and those of a plain pass over the whole sequence."""
    new = [item.token for item in items]
    start = len(generation.response_tokens)
    logits = plain_logits(model, generation.prompt_tokens, [*generation.response_tokens, *new])[start:]
    expected = (logits / temperature).log_softmax(-1)[torch.arange(len(new)), torch.tensor(new)]
    return (expected - torch.tensor([item.logprob for item in items])).abs().max().item()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_pass_for_every_architecture(name, temperature):
    plain = make_model(name)
    engine = TorchEngine(make_model(name), make_rollout(4, temperature=temperature), stop_tokens=[])
    added = [replace(g, max_new_tokens=5 + 6 * i % 25) for i, g in enumerate(generations(9))]
    sampled = finish(engine, *added)
    assert max(worst_error(plain, g, sampled[g.key], temperature) for g in added) < 1e-4


def test_under_top_k_and_top_p_logprobs_are_those_of_the_cut_distribution(make, model):
    sampled = finish(make(4, temperature=0.8, top_k=6, top_p=0.9), *(added := generations(6)))
    for generation in added:
        items = sampled[generation.key]
        logits_TV = plain_logits(model, generation.prompt_tokens, [item.token for item in items]) / 0.8
        for logits_V, item in zip(logits_TV, items, strict=True):
            probs, order = logits_V.topk(6)
            probs = probs.softmax(-1)
            kept = [i for i in range(6) if probs[:i].sum() < 0.9]
            place = order.tolist().index(item.token)
            assert place in kept
            assert item.logprob == pytest.approx((probs[place] / probs[kept].sum()).log().item(), abs=1e-4)


def test_greedy_equals_generate(make, model):
    added = generations(7, budget=20)
    sampled = finish(make(3, stops=[STOP], temperature=0.0), *added)
    for generation in added:
        prompt = torch.tensor([generation.prompt_tokens])
        mask = torch.ones_like(prompt)
        wanted = model.generate(
            prompt, attention_mask=mask, do_sample=False, max_new_tokens=20, pad_token_id=0
        )
        items = sampled[generation.key]
        assert [item.token for item in items] == wanted[0, prompt.shape[1] :].tolist()
        assert worst_error(model, generation, items) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_interrupted_response_continues_with_its_noise(make, temperature):
    added = generations(8, budget=30, members=2)
    uninterrupted = tokens(finish(make(3, temperature=temperature), *added))
    draw = random.Random(5)
    engines = [make(5, temperature=temperature), make(2, temperature=temperature)]
    responses = {generation.key: [] for generation in added}
    for generation in added:
        engines[0].add(generation)
    while any(engine.is_busy() for engine in engines):
        here, there = draw.sample(engines, 2)
        for item in here.step():
            responses[item.key].append(item.token)
        if draw.random() < 0.3:
            moved = draw.choice(added)
            here.abort([moved.key])
            left = moved.max_new_tokens - len(responses[moved.key])
            if left:
                there.abort([moved.key])
                there.add(replace(moved, response_tokens=responses[moved.key][:], max_new_tokens=left))
    assert responses == uninterrupted


def test_what_is_sampled_does_not_depend_on_the_rest_of_the_batch(make):
    added = generations(10, members=2)
    together = finish(make(7), *added)
    shuffled = finish(make(4), *reversed(added))
    alone = make(1)
    for generation in added:
        assert tokens(finish(alone, generation))[generation.key] == tokens(together)[generation.key]
    assert tokens(shuffled) == tokens(together)


def test_siblings_cost_one_prefill_together_and_later(make):
    engine = make(4)
    prompt = list(range(2, 13))
    for member in range(6):  # two of them wait for a row
        engine.add(Generation((0, member, 0), prompt, [], 3 + member, member))
    finish(engine)
    finish(engine, Generation((0, 6, 0), prompt, [], 3, 6))
    load = engine.load()
    assert load.prefill_tokens == len(prompt) - 1
    assert load.decode_tokens == sum(range(3, 9)) + 3


def test_prompts_kept_for_siblings_are_bounded_and_the_least_used_goes_first(make):
    engine = make(4)  # keeps 4 * 50 / 8 = 25 tokens
    first, second, third = ([token] * 11 for token in (2, 3, 4))
    for number, prompt in enumerate((first, second, first, third, first, second)):
        finish(engine, Generation((number, 0, 0), prompt, [], 2, 0))
    assert engine.load().prefill_tokens == 4 * 10  # all but the repetitions of `first`


def test_a_long_queue_is_prefilled_over_several_steps_with_the_same_result(make, monkeypatch):
    added = generations(12, budget=4)
    at_once, stepwise = make(12), make(12)
    wanted = tokens(finish(at_once, *added))
    monkeypatch.setitem(engine_module.PREFILL_TOKENS, "cpu", 10)
    monkeypatch.setattr(engine_module, "PASS_TOKENS", 3)
    for generation in added:
        stepwise.add(generation)
    sampled, before = {}, 0
    while stepwise.is_busy():
        for item in stepwise.step():
            sampled.setdefault(item.key, []).append(item)
        prefilled = stepwise.load().prefill_tokens - before
        assert prefilled <= 10 or prefilled in {len(g.prompt_tokens) - 1 for g in added}
        before += prefilled
    assert tokens(sampled) == wanted
    assert before == at_once.load().prefill_tokens


def test_rows_keep_their_tokens_while_the_cache_grows_in_rows_and_in_length(make, model):
    engine, added = make(20), generations(20, budget=CONTEXT - 18)
    sampled = {generation.key: [] for generation in added}
    for generation in added:  # row by row, so that the older ones run when the cache grows
        engine.add(generation)
        for item in engine.step():
            sampled[item.key].append(item)
    for key, items in finish(engine).items():
        sampled[key] += items
    assert max(worst_error(model, g, sampled[g.key]) for g in added) < 1e-4


def test_no_more_than_capacity_run_first_come_first_served(make):
    engine = make(3)
    assert (engine.capacity, engine.kv_tokens) == (3, 150)
    added = generations(8, budget=5)
    for generation in added:
        engine.add(generation)
    started = []
    while engine.is_busy():
        sampled = engine.step()
        assert 1 <= len(sampled) <= 3
        started += [item.key for item in sampled if item.key not in started]
        load = engine.load()
        assert load.waiting == 8 - len(started)
        assert load.running <= 3
    assert started == [generation.key for generation in added]
    assert engine.step() == []
    assert engine.load().resident_tokens == 0


def test_a_response_ends_with_its_budget_on_the_very_token(make):
    added = [replace(g, max_new_tokens=1 + i) for i, g in enumerate(generations(6))]
    sampled = finish(make(4), *added)
    for generation in added:
        endings = [item.ending for item in sampled[generation.key]]
        assert endings == [""] * (generation.max_new_tokens - 1) + ["length"]


def test_a_stop_token_is_the_last_token_of_its_response(make):
    free = tokens(finish(make(4), *(added := generations(8, budget=25))))
    stops = [5, 9]
    sampled = finish(make(4, stops=[*stops, 10**6]), *added)
    for key, items in sampled.items():
        where = next((i for i, token in enumerate(free[key]) if token in stops), 24)
        assert [item.token for item in items] == free[key][: where + 1]
        last = "stop" if free[key][where] in stops else "length"
        assert [item.ending for item in items] == [""] * where + [last]
    assert {items[-1].ending for items in sampled.values()} == {"stop", "length"}


def test_aborted_generations_are_forgotten_and_the_others_go_on_unharmed(make):
    added = generations(9, budget=20)
    wanted = tokens(finish(make(9), *added))
    engine = make(5)
    for generation in added:
        engine.add(generation)
    got = {}
    for gone in ([], [0, 4, 8], [2, 6]):
        engine.abort([added[i].key for i in gone] + [(99, 0, 0)])
        for _ in range(3):
            for item in engine.step():
                got.setdefault(item.key, []).append(item.token)
    rest = tokens(finish(engine))
    for i in (1, 3, 5, 7):
        key = added[i].key
        assert got.get(key, []) + rest[key] == wanted[key]
    assert not any(added[i].key in rest for i in (0, 2, 4, 6, 8))


def test_new_weights_serve_new_generations_even_of_prompts_seen_before(make):
    other = make_model(seed=1)
    engine = make(4)
    first, again = generations(1)[0], replace(generations(1)[0], key=(1, 0, 0))
    before = finish(engine, first)
    engine.load_weights(7, {n: t for n, t in other.state_dict().items() if n != "lm_head.weight"})
    after = finish(engine, again)
    assert engine.policy_version == 7
    assert worst_error(other, again, after[again.key]) < 1e-4
    assert tokens(before)[first.key] != tokens(after)[again.key]


def test_a_running_generation_keeps_its_kv_over_a_swap_and_samples_under_the_new_weights(make):
    generation = replace(generations(1)[0], max_new_tokens=20)
    engine, unchanged = make(2), make(2)
    for each in (engine, unchanged):
        each.add(generation)
        each.step()
    engine.load_weights(1, make_model(seed=1).state_dict())
    prefilled = engine.load().prefill_tokens
    assert tokens(finish(engine)) != tokens(finish(unchanged))
    assert engine.load().prefill_tokens == prefilled


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing, first model.norm.weight"),
        (lambda t: [t.pop("lm_head.weight"), t.pop("model.embed_tokens.weight")], "missing, first lm_head"),
        (lambda t: t.update(extra=torch.zeros(2)), "not weights of this model, first extra"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(5)}), r"shape \(5,\); expected .*\(32,\)"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}), "torch.int8"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(VOCABULARY, 32)}), "tied"),
    ],
)
def test_wrong_tensors_are_refused_and_change_nothing(make, change, words):
    engine, added = make(4), generations(3)
    wanted = tokens(finish(engine, *added))
    tensors = dict(make_model(seed=1).state_dict())
    change(tensors)
    with pytest.raises(ValueError, match=words):
        engine.load_weights(3, tensors)
    assert engine.policy_version == 0
    assert tokens(finish(engine, *added)) == wanted


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"max_new_tokens": CONTEXT - 2},
            f"3 prompt . 0 response . {CONTEXT - 2} new = {CONTEXT + 1} tokens",
        ),
        ({"response_tokens": [2] * CONTEXT}, f"context is {CONTEXT}"),
        ({"max_new_tokens": 0}, "budget of 0"),
        ({"prompt_tokens": []}, "0 prompt tokens"),
        ({"prompt_tokens": [2, VOCABULARY]}, f"ids from 2 to {VOCABULARY}"),
        ({"response_tokens": [-1]}, "ids from -1"),
        ({"key": (1, 0, 0)}, "here already"),
    ],
)
def test_a_generation_that_can_never_run_is_refused_in_words(make, wrong, words):
    engine = make(2)
    fine = Generation((0, 0, 0), [2, 3, 4], [], 5, 0)
    engine.add(replace(fine, key=(1, 0, 0)))
    with pytest.raises(ValueError, match=words):
        engine.add(replace(fine, **wrong))
    finish(engine, replace(fine, max_new_tokens=CONTEXT - 3))
    assert engine.load().decode_tokens == 5 + CONTEXT - 3


def test_the_factory_follows_the_settings(directory, model):
    settings = WorkerSettings(
        run_dir=".",
        seed=0,
        steps=1,
        model=ModelSettings(dtype="bfloat16"),
        rollout=make_rollout(2).model_copy(update={"device": "cpu"}),
        reward=RewardSettings(),
        trainer=TrainerSettings(),
    )
    engine = make_engine(settings, directory)
    assert stop_tokens(model.generation_config, directory) == [STOP]
    sampled = finish(engine, *(added := generations(3, budget=4)))
    assert 0.0 < max(worst_error(model, g, sampled[g.key]) for g in added) < 0.2


def test_without_a_generation_config_the_tokenizer_names_the_stop_token(tmp_path):
    plain = make_model()
    plain.generation_config.eos_token_id = None
    assert stop_tokens(plain.generation_config, tmp_path) == []
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "end": 2}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end").save_pretrained(tmp_path)
    assert stop_tokens(plain.generation_config, tmp_path) == [2]
    plain.generation_config.eos_token_id = [3, 4]
    assert stop_tokens(plain.generation_config, tmp_path) == [3, 4]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BloomConfig(**COMMON, hidden_size=32, n_layer=1, n_head=4), "takes no position_ids"),
        (MambaConfig(**COMMON, hidden_size=32, num_hidden_layers=1), "linear_attention"),
    ],
    ids=["bloom", "mamba"],
)
def test_a_model_that_rows_cannot_serve_is_refused_when_it_is_loaded(config, words):
    with pytest.raises(ConfigError, match=words):
        TorchEngine(AutoModelForCausalLM.from_config(config).eval(), make_rollout(), stop_tokens=[])
