"""Encodes rows as a reward worker would, for `launch.py check`, in a process of `protocol.asking`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.importing import hide_torch
from protocol.model_files import vocabulary_of
from workers.models.tokenizer import load_tokenizer, stop_tokens_of
from workers.reward.chat_rows import why_unheard
from workers.reward.worker import check_vocabulary, encode_prompt, encode_response, why_endless


def prepare_process() -> None:
    """Prepare the process as for a reward worker."""
    hide_torch()


def answer(question: Mapping[str, Any]) -> tuple[str | None, list[str], str | None, str | None]:
    """What is wrong with a model and rows.

    Why there is no tokenizer; the reason for each row that is refused; why no response has an end; what the
    chat template leaves out.
    """
    try:
        tokenizer = load_tokenizer(question["model"])
        stops = stop_tokens_of(question["model"], tokenizer)
    except ConfigError as error:
        return " ".join(str(error).split()), [], None, None
    refused, responses = [], []
    is_supervised, vocabulary = question["is_supervised"], vocabulary_of(Path(question["model"]))
    longest, most = question["max_prompt_tokens"], question["max_response_tokens"]
    for row in question["rows"]:
        text = json.dumps(row).encode()
        try:
            ids = encode_prompt(tokenizer, text, limit=longest, is_supervised=is_supervised)
            answer = []
            if is_supervised:
                answer = encode_response(tokenizer, text, ids, limit=most, stops=stops)
                responses.append(answer)
            check_vocabulary([*ids, *answer], vocabulary)
        except Exception as error:  # tokenizers and chat templates raise whatever they like
            refused.append(str(error))
    unheard = why_unheard(tokenizer, question["rows"])
    return None, refused, why_endless(tokenizer, responses, stops), unheard
