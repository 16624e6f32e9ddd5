"""A real run whose messages are written and read by a renderer of the library `renderers`."""

import importlib.util
import itertools

import pytest
from test_whole_runs import config, left_behind, run_to_the_end

from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.sample_text import SampleReader

pytestmark = [
    pytest.mark.costly,
    pytest.mark.skipif(importlib.util.find_spec("renderers") is None, reason="needs the extra renderers"),
]
TURNS, STEPS = 3, 3
AGENT = """
async def episode(policy, row):
    messages, said = [{"role": "user", "content": row["prompt"]}], ""
    for turn in range(3):
        answer = await policy.chat(messages, max_tokens=6)
        said += answer["content"]
        messages += [answer, {"role": "user", "content": f"go on {turn}<|im_end|>"}]
    digits = [character for character in said if character.isdigit()]
    return sum(digit in "02468" for digit in digits) / len(digits) if digits else 0.0
"""


def lay_family_model(directory):
    """A random Qwen 3 of some ten thousand weights, with a tokenizer that has its family's tokens."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.support.family_tokenizer import make_family_tokenizer

    tokenizer = make_family_tokenizer("qwen3")
    torch.manual_seed(0)
    made = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
        tie_word_embeddings=True, initializer_range=0.1, bos_token_id=None, pad_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )  # fmt: skip
    Qwen3ForCausalLM(made).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer


async def test_a_run_by_a_renderer_of_the_library_trains_what_was_sampled(tmp_path):
    tokenizer = lay_family_model(tmp_path / "run" / "model")
    (tmp_path / "agent.py").write_text(AGENT)
    settings = config(
        tmp_path,
        run={"steps": STEPS},
        agent={"function": f"{tmp_path}/agent.py:episode", "renderer": "qwen3", "max_turns": TURNS},
        reward={"function": ""},
        rollout={"max_prompt_tokens": 160, "max_response_tokens": 60},
        staleness={"max_staleness": 0},
    )
    lines, summary = await run_to_the_end(settings)
    assert summary["is_success"], summary["reason"]
    assert summary["counts"].get("episodes/failed_agent", 0) == 0
    assert [line["turns/mean"] for line in lines] == [TURNS] * STEPS
    assert all(line["mismatch_kl"] < 1e-6 for line in lines), "the trainer reads the engine's very tokens"
    spent = sum(summary[f"tokens/{end}"] for end in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
    begins = tokenizer.convert_tokens_to_ids("<|im_start|>")
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
        reader = SampleReader(recording)
        kept = [one for key in reader.kept() for one in reader.read(*key).responses]
    whole = [one for one in map(by_runs, kept) if len(one) == 2 * TURNS]
    assert len(whole) > len(kept) / 2, "a turn that ends within its thoughts begins another trajectory"
    for runs in whole:
        given = [token for run in runs[::2] for token in run]
        assert [token.id for token in given].count(begins) == 2 * TURNS
        texts = ["".join(token.text for token in run) for run in runs[::2]]
        assert texts[0].startswith("<|im_start|>user\n")
        for turn, text in enumerate(texts[1:]):
            assert f"<|im_start|>user\ngo on {turn}<|im_end|><|im_end|>\n<|im_start|>assistant\n" in text
        ends = [token for token in given if token.id == tokenizer.convert_tokens_to_ids("<|im_end|>")]
        assert len(ends) <= 2 * TURNS - 1, "what an environment spells ends no turn"
    assert not left_behind()


def by_runs(response):
    """Its tokens: given, sampled, given and so on."""
    runs = itertools.groupby(response.tokens, key=lambda token: token.policy_version is None)
    return [list(run) for _, run in runs]
