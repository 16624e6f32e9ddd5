"""What is the embedded engine's own; tests/conformance has what every engine keeps."""

import random
from copy import deepcopy
from dataclasses import replace
from inspect import signature

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    BloomConfig,
    GPT2Config,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3_5TextConfig,
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
from workers.engines.torch import forward as forward_module
from workers.models.model import load_causal_lm, stop_tokens

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
    "qwen3.5, linear attention": Qwen3_5TextConfig(
        **SIZES, **COMMON, head_dim=8, intermediate_size=48, max_position_embeddings=CONTEXT,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "lfm2, convolutions": Lfm2Config(
        **SIZES, **COMMON, intermediate_size=48, max_position_embeddings=CONTEXT,
        layer_types=["conv", "full_attention"],
    ),
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
    monkeypatch.setattr(forward_module, "PASS_TOKENS", 3)
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
        (lambda t: [t.pop("lm_head.weight"), t.pop("model.embed_tokens.weight")], "missing, first lm_head"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(VOCABULARY, 32)}), "tied"),
    ],
)
def test_tied_tensors_that_are_missing_or_differ_are_refused_and_change_nothing(make, change, words):
    engine, added = make(4), generations(3)
    wanted = tokens(finish(engine, *added))
    tensors = dict(make_model(seed=1).state_dict())
    change(tensors)
    with pytest.raises(ValueError, match=words):
        engine.load_weights(3, tensors)
    assert engine.policy_version == 0
    assert tokens(finish(engine, *added)) == wanted


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
        (MambaConfig(**COMMON, hidden_size=32, num_hidden_layers=1), "takes no position_ids"),
        (Llama4TextConfig(**SIZES, **COMMON, head_dim=8, intermediate_size=48), "chunked_attention"),
    ],
    ids=["bloom", "mamba", "llama4"],
)
def test_a_model_that_rows_cannot_serve_is_refused_when_it_is_loaded(config, words):
    with pytest.raises(ConfigError, match=words):
        TorchEngine(AutoModelForCausalLM.from_config(config).eval(), make_rollout(), stop_tokens=[])


def test_rows_of_one_batch_are_sampled_each_in_its_own_way(make):
    batch = generations(2)
    same = [replace(one, key=(10 + one.key[0], *one.key[1:])) for one in batch]
    greedy = [replace(one, sampling=SamplingSettings(temperature=0.0)) for one in same]
    apart = tokens(finish(make(), *batch)) | tokens(finish(make(temperature=0.0), *same))
    assert tokens(finish(make(), *batch, *greedy)) == apart
    assert tokens(finish(make(), *batch, *same)) != apart


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_of_one_token_knows_nothing_of_what_ran_in_its_row_before(name):
    used, fresh = (TorchEngine(make_model(name), make_rollout(), stop_tokens=[]) for _ in range(2))
    finish(used, *generations(4))
    one = Generation((9, 0, 0), [5], [], 8, 7)
    assert tokens(finish(used, one)) == tokens(finish(fresh, one))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_of_one_token_may_take_the_first_row_beyond_those_that_are_allocated(name):
    alone, full = (TorchEngine(make_model(name), make_rollout(12), stop_tokens=[]) for _ in range(2))
    one = Generation((9, 0, 0), [5], [], 8, 7)
    wanted = tokens(finish(alone, one))[one.key]
    for member in range(8):  # as many rows as a cache begins with
        full.add(Generation((1, member, 0), [2, 3, 4], [], 12, member))
    full.step()
    assert tokens(finish(full, one))[one.key] == wanted


class WithRenamedCache(LlamaForCausalLM):
    """Takes its cache under the name of transformers 5.24, and drops the one of before, as 5.40 will."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, **options):
        options.pop("past_key_values", None)
        before = signature(LlamaForCausalLM.forward).parameters
        options["cache" if "cache" in before else "past_key_values"] = cache
        return super().forward(input_ids, attention_mask, position_ids, **options)


class OfTheUser(WithRenamedCache):
    """Passes on what it does not name."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        return super().forward(input_ids, attention_mask, position_ids, **options)


@pytest.mark.parametrize("kind", [LlamaForCausalLM, WithRenamedCache, OfTheUser])
def test_a_model_gets_its_cache_under_the_name_of_its_transformers(kind):
    torch.manual_seed(0)
    model = kind(LlamaConfig(**SIZES, **COMMON, intermediate_size=48, max_position_embeddings=CONTEXT)).eval()
    engine = forward_module.Forward(model, max_rows=2, max_length=16)
    engine.check_decoding()
