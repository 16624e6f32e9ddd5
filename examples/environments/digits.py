"""A model of digits for environments of several turns: what is the digit behind this one?

The model begins with random weights and has one token per digit, so that a run of a minute on two cores
learns. `Successors` is the task as a taskset of verifiers, `Counting` as a Gymnasium environment.
"""

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DIGITS = "0123456789"
TURNS = 3
CONTEXT = 32


def successor(digit: str) -> str:
    """The next digit; 0 follows 9."""
    return DIGITS[(DIGITS.index(digit) + 1) % len(DIGITS)]


def prompts(*, seed: int) -> Iterator[dict[str, Any]]:
    """Rows without end: where to begin. The environment draws the digits behind it from its seed."""
    source = random.Random(seed)
    while True:
        yield {"first": source.choice(DIGITS)}


class Counting:
    """A text environment as Gymnasium has them: three digits, each of which asks for the next one."""

    def reset(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The first digit."""
        self._source, self._shown, self._turns = random.Random(seed), options["first"], 0
        return self._shown, {}

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Another digit, and whether the answer to the last one was right."""
        reward = float(text == successor(self._shown)) / TURNS
        self._turns += 1
        self._shown = self._source.choice(DIGITS)
        return self._shown, reward, self._turns == TURNS, False, {}


def make_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a model of 30 thousand random parameters and its tokenizer there."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    progress(1.0, "random weights")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per digit, then `<eos>` and `<pad>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*DIGITS, "<eos>", "<pad>"])}
    table = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    table.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    table.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=table, eos_token="<eos>", pad_token="<pad>", model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
