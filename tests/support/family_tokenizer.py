"""Tokenizers in which a renderer of the library `renderers` finds the tokens that it asks for."""

import re
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workers.agent.rendering import library

FURTHER = "\uff5c\u2581\u3008\u3009"  # characters of the tokens themselves
MARKED = re.compile("[<\uff5c\u3008].*[>\uff5c\u3009]")


class _Learner(library.GuardedTokenizer):
    """Has each token that it is asked for."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.learns = True

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str) and self.learns:
            self._tokenizer.add_tokens([AddedToken(tokens, special=False, normalized=False)])
        return super().convert_tokens_to_ids(tokens)

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        if MARKED.fullmatch(text):
            self.convert_tokens_to_ids(text)
        return super().encode(text)


def make_family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """One token per character, and those that the renderer of this name is made of: none of them special.

    That is the hardest case: many real tokenizers mark the same tokens as special, which the texts of
    messages cannot spell anyway.
    """
    characters = [chr(code) for code in (10, *range(32, 127))] + [*FURTHER]
    vocabulary = {character: index for index, character in enumerate([*characters, "<unk>"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        eos_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    library.make(name, _Learner(tokenizer))
    return tokenizer
