"""A task of programs that a tiny model can learn: each of its tokens is a line of Python.

A prompt names a function of two numbers, `# add`. The response defines `f`, and asserts test it in the
sandbox: the last definition counts. The model begins with random weights.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

TASKS = {
    "# add\n": ("a + b", lambda a, b: a + b),
    "# subtract\n": ("a - b", lambda a, b: a - b),
    "# multiply\n": ("a * b", lambda a, b: a * b),
    "# larger\n": ("max(a, b)", lambda a, b: max(a, b)),
}
"""By prompt: the body of a right answer, and what it computes."""
OTHER_LINES = (
    "import os; os._exit(0)\n", "f = lambda a, b: 1 / 0\n", "class f(int): __eq__ = lambda *a: True\n",
)  # fmt: skip
"""What a model may try instead: none of it is worth anything."""
TESTS = 4


def prompts(*, seed: int) -> Iterator[dict[str, Any]]:
    """Rows without end: a prompt, and asserts on numbers that tell the tasks from one another."""
    source = random.Random(seed)
    while True:
        name = source.choice(list(TASKS))
        pairs = [(source.randint(3, 99), source.randint(3, 99)) for _ in range(TESTS)]
        function = TASKS[name][1]
        yield {"prompt": name, "tests": [f"assert f({a}, {b}) == {function(a, b)}" for a, b in pairs]}


def make_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a model of 30 thousand random parameters and its tokenizer there."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    lines = [f"f = lambda a, b: {body}\n" for body, _ in TASKS.values()]
    words = [*TASKS, *lines, *OTHER_LINES, "<eos>", "<pad>"]
    table = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    table.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=table, eos_token="<eos>", pad_token="<pad>", model_max_length=16,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=16,
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
