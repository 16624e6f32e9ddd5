"""Encodes texts so that they cannot spell special tokens, and decodes tokens.

Invariants: text of a message never becomes a special token; the tokenizer alone defines which texts those
are.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from workers.agent.messages import replaced, texts_of, whole_text
from workers.models.tokenizer import plain_tokens, unused_mark

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class Hidden(NamedTuple):
    """Messages and tools with stand-ins for texts that spell special tokens."""

    messages: Messages
    tools: Tools
    stand_ins: Mapping[str, str]
    """The original text of each stand-in."""


def hide(special: Sequence[str], messages: Messages, tools: Tools) -> Hidden:
    """Replace these tokens' texts, longest first, by stand-ins."""
    texts = [*texts_of(messages), *texts_of(tools or ())]
    spelt = [token for token in special if any(token in text for text in texts)]
    if not spelt:
        return Hidden(messages, tools, {})
    mark = unused_mark(texts)
    hidden = {token: f"{mark}{place}{mark}" for place, token in enumerate(spelt)}
    safe = replaced(messages, hidden), replaced(tools, hidden) if tools else tools
    return Hidden(*safe, {stand_in: token for token, stand_in in hidden.items()})


def encoded(tokenizer: Any, text: str, hidden: Mapping[str, str]) -> list[int]:
    """The tokens of a rendered text: hidden texts become ordinary tokens.

    Half characters, as a policy may write in the arguments of a call, are replaced.
    """
    text = whole_text(text)
    if not hidden:
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, hidden)) + ")", text):
        if part in hidden:
            tokens += plain_tokens(tokenizer, hidden[part])
        elif part:
            tokens += tokenizer(part, add_special_tokens=False)["input_ids"]
    return tokens


def end_tokens(tokenizer: Any, stops: Collection[int] = ()) -> frozenset[int]:
    """The tokens that end a turn: the tokenizer's, and `stops`, at which the engines stop.

    In families such as Gemma and Phi the end of a turn is another token than the tokenizer's.
    """
    own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return frozenset((*own, *stops))


def text_of(tokenizer: Any, tokens: Sequence[int], ends: frozenset[int]) -> str:
    """The text of a turn, without the token that ended it."""
    kept = list(tokens[:-1]) if tokens and tokens[-1] in ends else list(tokens)
    return tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
