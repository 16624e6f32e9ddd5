"""Tells which messages a chat template leaves out: one that knows no tools may drop their answers unsaid.

Invariant: pure; a template that refuses a made-up conversation is taken to write it, as it refuses real ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

TOOLS = "tools"
"""In the place of a role: the tools that the policy is offered."""
ID = "aaaaaaaaa"
USER = {"role": "user", "content": "question"}
CALL = {"id": ID, "type": "function", "function": {"name": "call", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}

Write = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Writes messages and tools by the template."""


def is_written(what: str, write: Write, text: str) -> bool:
    """Whether the template writes the content of messages of a role, or `TOOLS`.

    `text`: one that is not in the template.
    """
    if what == TOOLS:
        return _is_in(text, write, [USER], [_tool(text)])
    said = {"role": what, "content": text}
    match what:
        case "tool":
            talk = [USER, CALLED, said | {"tool_call_id": ID, "name": "call"}]
        case "user":
            talk = [said]
        case "assistant":
            talk = [USER, said, USER]
        case _:
            talk = [said, USER]
    return _is_in(text, write, talk, None) or _is_in(text, write, talk, [_tool("call")])


def left_out(role: str) -> str:
    """The error for a message that the policy would not see."""
    return (
        f"The chat template leaves out what messages of the role {role} say, so that the policy would not "
        "see it. Give the tokenizer another chat template, set `agent.renderer` to one of the model's "
        "family, or say it in a message of another role."
    )


def _is_in(text: str, write: Write, talk: Sequence[Mapping[str, Any]], tools: Any) -> bool:
    try:
        return text in write(talk, tools)
    except (TemplateError, ValueError, TypeError, KeyError):
        return True


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}
