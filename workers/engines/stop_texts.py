"""Finds the strings of `rollout.sampling.stop` in sampled tokens, one token at a time.

Invariant: only the response counts, wherever its parts were sampled; a string may begin in one token and end
in another, and the token that completes it ends the response, if the response has min_tokens by then.
"""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import Protocol

from transformers import AutoTokenizer

from protocol.errors import ConfigError
from protocol.settings import SamplingSettings

SLACK_TOKENS = 8  # decoded before the string, so that a cut character or a stripped blank is not part of it


class Tokenizer(Protocol):
    """The method of a tokenizer that is needed."""

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool) -> str:
        """The text of these tokens, special ones included."""
        ...


class StopTexts:
    """The stop strings of one engine."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def ends(self, tokens: Sequence[int], sampling: SamplingSettings) -> bool:
        """Whether the last token of a response completes a stop string that ends it."""
        if len(tokens) < max(1, sampling.min_tokens):
            return False
        # a token is a byte or more of text, so the string lies in as many tokens as it has bytes
        longest = max(len(stop.encode()) for stop in sampling.stop) + SLACK_TOKENS
        window = list(tokens[-longest:])
        text = self._decode(window)
        found = [stop for stop in sampling.stop if stop in text]
        if not found:
            return False
        # characters from before the last token, which may complete one of several strings
        old = sum(takewhile(bool, map(eq, text, self._decode(window[:-1]))))
        return any(text.find(stop, max(0, old - len(stop) + 1)) >= 0 for stop in found)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def stop_texts(model_directory: str, *samplings: SamplingSettings) -> StopTexts | None:
    """The stop texts of an engine, if one of these samplings needs them. Raises: ConfigError."""
    if not any(sampling.stop for sampling in samplings):
        return None
    try:
        return StopTexts(AutoTokenizer.from_pretrained(model_directory, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`rollout.sampling.stop` is set, and {model_directory} has no tokenizer to find strings with: "
            f"{error} Expected tokenizer.json beside the weights; add it, or give no `stop`."
        ) from error
