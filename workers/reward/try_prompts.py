"""Encodes rows as a reward worker would, for `launch.py check`; by way of `protocol.asking`."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.models.tokenizer import load_tokenizer
from workers.reward.worker import encode_prompt, encode_response


def prepare_process() -> None:
    """As for a reward worker: transformers imports torch wherever it is, and tokenizing does not need it."""
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]  # None hides it
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def answer(question: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """(why there is no tokenizer, the reason for each row that is refused)."""
    try:
        tokenizer = load_tokenizer(question["model"])
    except ConfigError as error:
        return " ".join(str(error).split()), []
    refused = []
    for row in question["rows"]:
        text = json.dumps(row).encode()
        try:
            ids = encode_prompt(tokenizer, text, limit=question["max_prompt_tokens"])
            if question["is_supervised"]:
                encode_response(tokenizer, text, ids, limit=question["max_response_tokens"])
        except Exception as error:  # tokenizers and chat templates raise whatever they like
            refused.append(str(error))
    return None, refused
