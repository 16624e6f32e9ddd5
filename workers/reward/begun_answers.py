"""Prompts that end within an answer: a conversation whose last message is the assistant's.

Invariant: pure.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

CONTINUE = "continue_final_message"  # as transformers calls it
NOTHING: Mapping[str, Any] = MappingProxyType({})


def is_begun(talk: Sequence[Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the policy goes on with the last message, and does not answer it.

    `wanted`: the row's `chat_template_kwargs`, whose `continue_final_message` decides if it is there. Source:
    TRL's `apply_chat_template`; its GRPOTrainer (1.16) never goes on with a message.
    """
    last: object = talk[-1] if talk else None
    return bool(wanted.get(CONTINUE, isinstance(last, Mapping) and last.get("role") == "assistant"))


def opening(talk: Sequence[Any], wanted: Mapping[str, Any]) -> dict[str, bool]:
    """Arguments of `apply_chat_template` for a prompt: it ends where the policy's text begins."""
    goes_on = is_begun(talk, wanted)
    return {CONTINUE: True, "add_generation_prompt": False} if goes_on else {"add_generation_prompt": True}


def with_answer(talk: Sequence[Any], answer: str, wanted: Mapping[str, Any] = NOTHING) -> list[Any]:
    """The conversation with the policy's answer: a message of its own, or the rest of the last message."""
    begun = talk[-1].get("content") if is_begun(talk, wanted) else None
    if isinstance(begun, str):
        return [*talk[:-1], {**talk[-1], "content": begun + answer}]
    if isinstance(begun, list):  # of parts of text
        return [*talk[:-1], {**talk[-1], "content": [*begun, {"type": "text", "text": answer}]}]
    return [*talk, {"role": "assistant", "content": answer}]
