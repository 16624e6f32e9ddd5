"""Turns that go on where they ended, against an engine that computes every context again."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import GPT2Config, Qwen3_5TextConfig, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

from protocol.settings import RolloutSettings, SamplingSettings
from workers.engines.interface import Generation
from workers.engines.torch import TorchEngine
from workers.engines.torch.cache import Computed, KvRows
from workers.engines.torch.parked import ParkedRows

VOCABULARY, CONTEXT = 24, 160
CONFIGS = {
    "qwen3, other layers sliding": Qwen3Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, vocab_size=VOCABULARY, initializer_range=0.3, max_position_embeddings=CONTEXT,
        use_sliding_window=True, sliding_window=6, max_window_layers=1,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, initializer_range=0.3, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT
    ),
    "qwen3.5, linear attention": Qwen3_5TextConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, vocab_size=VOCABULARY, initializer_range=0.3, max_position_embeddings=CONTEXT,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Several take longer for models of this size, on a machine with other work many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()


def make_engine(model, *, rows=3, parks=True, keeps_kv=False):
    rollout = RolloutSettings(
        max_running=rows, max_prompt_tokens=CONTEXT - 32, max_response_tokens=32, sampling=SamplingSettings()
    )
    return TorchEngine(deepcopy(model), rollout, stop_tokens=[3], parks_turns=parks, keeps_kv=keeps_kv)


def answer(engine, *generations):
    """What is sampled for these, run to their end, by key."""
    for generation in generations:
        engine.add(generation)
    sampled = {}
    while engine.is_busy():
        for item in engine.step():
            sampled.setdefault(item.key, []).append(item)
    return sampled


def tokens(items):
    return [item.token for item in items]


class Episode:
    """A conversation whose environment says random tokens."""

    def __init__(self, group, member, draw):
        self.id, self.draw, self.turn = (group, member), draw, 0
        self.text = [random.Random(group).randrange(4, VOCABULARY) for _ in range(6)]

    def ask(self, *, budget=None):
        self.turn += 1
        if self.turn > 1:
            self.text += [self.draw.randrange(4, VOCABULARY) for _ in range(self.draw.randint(1, 5))]
        seed = self.draw.getrandbits(30)
        return Generation((*self.id, self.turn), list(self.text), [], budget or self.draw.randint(1, 6), seed)

    def hear(self, items):
        self.text += tokens(items)


def test_at_home_a_turn_is_prefilled_from_where_the_one_before_ended(model):
    engine, text = make_engine(model, rows=2), [5] * 8
    given = 8
    for turn in range(1, 6):
        before = engine.load()
        items = answer(engine, Generation((0, 0, turn), list(text), [], 12, turn))[0, 0, turn]
        load = engine.load()
        prefilled = load.prefill_tokens - before.prefill_tokens
        assert prefilled <= given + 1, f"turn {turn}"
        assert load.reused_tokens - before.reused_tokens == len(text) - 1 - prefilled
        assert load.parked_tokens == len(text) + len(items) - 1
        text += [*tokens(items), *[6] * given]
    assert engine.load().reused_tokens > 100


@pytest.mark.parametrize("rows", [1, 3])
def test_random_episodes_get_the_same_tokens_whether_turns_are_parked_or_not(model, rows):
    draw = random.Random(rows)
    parking, plain = make_engine(model, rows=rows), make_engine(model, rows=rows, parks=False)
    episodes = [Episode(number // 3, number % 3, draw) for number in range(6)]
    for turn in range(9):
        some = [one for one in episodes if draw.random() < 0.5 and len(one.text) < CONTEXT - 32]
        asked = {one.id: one.ask() for one in some}
        found = answer(parking, *asked.values())
        wanted = answer(plain, *asked.values())
        assert {key: tokens(items) for key, items in found.items()} == {
            key: tokens(items) for key, items in wanted.items()
        }
        for key, items in found.items():
            logprobs = [item.logprob for item in wanted[key]]
            assert [item.logprob for item in items] == pytest.approx(logprobs, abs=1e-4)
        for one in some:
            one.hear(found[asked[one.id].key])
        if turn == 5:  # another fork of a conversation that is there
            fork = Episode(0, 3, draw)
            fork.text, fork.turn = episodes[0].text[: len(episodes[0].text) // 2], 1
            episodes.append(fork)
    load = parking.load()
    assert load.reused_tokens > 0
    assert load.prefill_tokens + load.reused_tokens >= plain.load().prefill_tokens
    assert load.prefill_tokens < plain.load().prefill_tokens


def test_others_that_run_and_end_in_between_leave_parked_rows_alone(model):
    draw = random.Random(1)
    parking, plain = make_engine(model, rows=4), make_engine(model, rows=4, parks=False)
    one, others = Episode(0, 0, draw), [Episode(group, 0, draw) for group in (1, 2, 3)]
    for turn in range(3):
        first = one.ask(budget=6)
        one.hear(answer(parking, first)[first.key])
        crowd = [other.ask(budget=3 + 2 * place) for place, other in enumerate(others)]
        for engine in (parking, plain):
            engine.add(crowd[0])
            engine.step()
            engine.abort([crowd[0].key])
        found, wanted = answer(parking, *crowd), answer(plain, *crowd)
        for other, ask in zip(others, crowd, strict=True):
            assert tokens(found[ask.key]) == tokens(wanted[ask.key]), turn
            other.hear(found[ask.key])
    before, last = parking.load(), one.ask(budget=6)
    assert tokens(answer(parking, last)[last.key]) == tokens(answer(plain, last)[last.key])
    assert parking.load().prefill_tokens - before.prefill_tokens <= 6


def test_a_long_row_that_lacks_little_and_a_short_one_that_lacks_much_stay_within_their_rows(model):
    parking, plain = make_engine(model, rows=2), make_engine(model, rows=2, parks=False)
    long, short = [5] * (CONTEXT - 20), [6] * 4
    added = []
    for group, text in enumerate((long, short)):
        ask = Generation((group, 0, 1), text, [], 4, group)
        added.append([*text, *tokens(answer(parking, ask)[ask.key])])
    asks = [
        Generation((0, 0, 2), [*added[0], 7], [], 4, 8),
        Generation((1, 0, 2), [*added[1], *[7] * 40], [], 4, 9),
    ]
    found, wanted = answer(parking, *asks), answer(plain, *asks)
    for ask in asks:
        assert tokens(found[ask.key]) == tokens(wanted[ask.key])
        logprobs = [item.logprob for item in wanted[ask.key]]
        assert [item.logprob for item in found[ask.key]] == pytest.approx(logprobs, abs=1e-4)


def test_who_needs_the_room_gets_it_and_the_oldest_goes_first(model):
    engine = make_engine(model, rows=3)
    texts = {}
    for group in range(3):
        ask = Generation((group, 0, 1), [4 + group] * 10, [], 8, group)
        texts[group] = [*ask.prompt_tokens, *tokens(answer(engine, ask)[ask.key]), 4]
    ask = Generation((9, 0, 1), [9] * 10, [], 8, 0)
    answer(engine, ask)  # takes the place of group 0
    before = engine.load()
    for group in (2, 1):
        answer(engine, Generation((group, 0, 2), texts[group], [], 1, 0))
    assert engine.load().prefill_tokens - before.prefill_tokens <= 4
    before = engine.load()
    answer(engine, Generation((0, 0, 2), texts[0], [], 1, 0))
    assert engine.load().prefill_tokens - before.prefill_tokens == len(texts[0]) - 1


@pytest.mark.parametrize("keeps_kv", [False, True])
def test_new_weights_empty_what_is_parked_unless_kv_is_kept(model, keeps_kv):
    engine = make_engine(model, keeps_kv=keeps_kv)
    ask = Generation((0, 0, 1), [5] * 10, [], 8, 0)
    text = [*ask.prompt_tokens, *tokens(answer(engine, ask)[ask.key]), 4]
    engine.load_weights(1, {name: 1.1 * weight for name, weight in engine.read_weights().items()})
    before = engine.load()
    assert bool(before.parked_tokens) == keeps_kv
    answer(engine, Generation((0, 1, 1), text, [], 1, 0))  # another conversation: never by old weights
    assert engine.load().prefill_tokens - before.prefill_tokens == len(text) - 1
    before = engine.load()
    answer(engine, Generation((0, 0, 2), text, [], 1, 0))
    found = engine.load().prefill_tokens - before.prefill_tokens
    assert found <= 2 if keeps_kv else found == 0  # the other has just computed the same prompt


def test_a_turn_that_ran_over_an_update_is_parked_for_its_own_conversation_alone(model):
    engine = make_engine(model, keeps_kv=True)
    ask = Generation((0, 0, 1), [5] * 10, [], 8, 0)
    engine.add(ask)
    text = [*ask.prompt_tokens, *tokens(engine.step())]
    engine.load_weights(1, {name: 1.1 * weight for name, weight in engine.read_weights().items()})
    while engine.is_busy():
        text += tokens(engine.step())
    for turn in (2, 3):  # the own conversation continues it, which makes nothing of it newer
        text += [4]
        before = engine.load()
        answer(engine, Generation((0, turn, 1), text, [], 1, 0))
        assert engine.load().prefill_tokens - before.prefill_tokens == len(text) - 1
        engine.load_weights(1, {name: weight.clone() for name, weight in engine.read_weights().items()})
        before = engine.load()
        text += tokens(answer(engine, Generation((0, 0, turn), text, [], 3, 0))[0, 0, turn])
        assert engine.load().prefill_tokens - before.prefill_tokens <= 2


def test_without_agents_nothing_is_parked(model):
    engine = make_engine(model, parks=False)
    answer(engine, Generation((0, 0, 1), [5] * 10, [], 8, 0))
    assert engine.load().parked_tokens == engine.load().reused_tokens == 0


def test_a_row_that_is_wanted_moves_what_is_parked_there_and_drops_the_oldest_last():
    cache = KvRows(max_rows=4, max_length=8)
    keys = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 8, 2).clone()
    cache.install(Computed({0: (keys, keys)}, {}), [(row, row) for row in range(4)], length=8)
    parked = ParkedRows(cache, rows=4)
    lines = {name: np.full(5, name[0], dtype=np.int32) for name in ((7, 0), (8, 0), (9, 0))}
    parked.put((7, 0), 1, lines[7, 0])
    parked.put((8, 0), 2, lines[8, 0])
    assert parked.tokens == 10
    parked.vacate(1)  # 7 moves to row 3
    parked.vacate(2)  # 8 finds no row, and 7, the oldest, goes
    assert parked.match((7, 0), lines[7, 0]) is None
    match = parked.match((8, 0), lines[8, 0])
    assert match is not None
    assert match.shared == 5
    parked.take((8, 0), match, 2)
    assert parked.tokens == 0
    with torch.inference_mode():
        cache.begin_extend([2], torch.tensor([[5]]), attended=6)
        read, _ = cache.update(torch.full((1, 1, 1, 2), -1.0), torch.full((1, 1, 1, 2), -1.0), 0)
    assert read[0, 0, :, 0].tolist() == [2, 2, 2, 2, 2, -1]
