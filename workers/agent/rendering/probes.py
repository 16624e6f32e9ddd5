"""Tests on made-up conversations whether a chat template leaves earlier turns unchanged.

Invariants: a probe compares the result of `extend` with a rendering of the whole; a template that raises on a
probe fails only that probe.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protocol.errors import ConfigError
from workers.agent.rendering.library import LibraryRenderer
from workers.agent.rendering.renderer import TEMPLATE_ERRORS, Past, Renderer, TemplateRenderer
from workers.models.tokenizer import TOOLS as TOOLS_OFFERED
from workers.models.tokenizer import read_arguments

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
USER = {"role": "user", "content": "one and one"}
MORE = {"role": "user", "content": "and one more"}
ANSWER = {"role": "assistant", "content": "two"}
THOUGHT = {"role": "assistant", "content": "two", "reasoning_content": "one, one"}


def _called(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}} for id in ids
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _told(id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": "2"}


class Talk(NamedTuple):
    """One conversation: messages before an answer, the answer, and messages after it."""

    before: Sequence[Mapping[str, Any]]
    answer: Mapping[str, Any]
    new: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None


REFUSED = "the template refuses it"
NO_TOOLS = (
    "leaves out the tools that an agent offers: the model's chat template does not write them, so the policy "
    "does not learn of them unless a message says them"
)
FIRST, SECOND = "aaaaaaaaa", "bbbbbbbbb"
TALKS = {
    "a user's turn": Talk([USER], ANSWER, [MORE]),
    "a tool's turn": Talk([USER], _called(FIRST), [_told(FIRST)], TOOLS),
    "two tool turns": Talk([USER, _called(FIRST), _told(FIRST)], _called(SECOND), [_told(SECOND)], TOOLS),
    "two tools at once": Talk([USER], _called(FIRST, SECOND), [_told(FIRST), _told(SECOND)], TOOLS),
    "a thinking turn": Talk([USER], THOUGHT, [MORE]),
}


def probe(renderer: Renderer) -> dict[str, str]:
    """For each conversation "" if the template only appends to it, or why not."""
    return {name: _try(renderer, talk) for name, talk in TALKS.items()}


def _try(renderer: Renderer, talk: Talk) -> str:
    try:
        prompt = renderer.render(talk.before, talk.tools)
        answered = renderer.render([*talk.before, talk.answer, *talk.new], talk.tools)
        behind = _behind(renderer, prompt, answered, talk)
    except (*TEMPLATE_ERRORS, ValueError) as error:
        return f"{REFUSED}: {type(error).__name__}: {error}"
    if behind is None:
        return "the renderer does not only append"
    if answered[: len(prompt)] != prompt:
        return "the template writes the prompt otherwise once it is answered"
    if answered[len(answered) - len(behind) :] != behind or len(answered) < len(prompt) + len(behind):
        return "the template writes what follows an answer otherwise than behind a stand-in"
    try:
        turn = answered[len(prompt) : len(answered) - len(behind)]
        said = renderer.parse(turn, prompt=prompt, tools=talk.tools)
    except ValueError as error:  # of a renderer of the user's own
        return f"{REFUSED}: {error}"
    if said.reasoning != talk.answer.get("reasoning_content", ""):
        return "the template strips the thinking of earlier turns"
    return ""


def _behind(
    renderer: Renderer, prompt: Sequence[int], answered: Sequence[int], talk: Talk
) -> list[int] | None:
    """The tokens after the answer; the library needs the answer as the policy would have sampled it."""
    if not isinstance(renderer, LibraryRenderer):
        past = Past(prompt, (), [*talk.before, talk.answer])
        return renderer.extend(None, talk.new, talk.tools, past=past)
    if not (sampled := _turn(renderer, prompt, answered)):
        return []  # the prompt is written differently, which is reported
    past = Past(prompt, sampled, [*talk.before, talk.answer])
    return renderer.extend(sampled[-1], talk.new, talk.tools, past=past)


def _turn(renderer: LibraryRenderer, prompt: Sequence[int], answered: Sequence[int]) -> list[int]:
    """The answer with the token that ends it; empty if the rendering does not continue the prompt."""
    ends = [place for place in range(len(prompt), len(answered)) if answered[place] in renderer.ends]
    return [*answered[len(prompt) : ends[0] + 1]] if answered[: len(prompt)] == prompt and ends else []


def doubts(renderer: Renderer, tokenizer: Any) -> list[str]:
    """How a renderer of the library differs from the tokenizer's template, or from itself.

    Of the tokenizer's template, whether it leaves out the tools that an agent offers.
    """
    if _leaves_out_tools(renderer):
        return [NO_TOOLS]
    if not isinstance(renderer, LibraryRenderer):
        return []
    template = TemplateRenderer(tokenizer) if tokenizer.chat_template else None
    written = [
        name for name, talk in TALKS.items() if template and _whole(renderer, talk) != _whole(template, talk)
    ]
    read = [name for name, talk in TALKS.items() if not _is_read(renderer, talk)]
    return [
        *([f"writes {', '.join(written)} otherwise than the tokenizer's chat template"] if written else ()),
        *([f"reads {', '.join(read)} otherwise than it writes it"] if read else ()),
    ]


def _leaves_out_tools(renderer: Renderer) -> bool:
    return isinstance(renderer, TemplateRenderer) and not renderer.writes(TOOLS_OFFERED)


def _is_read(renderer: LibraryRenderer, talk: Talk) -> bool:
    """Whether calls and text of the answer are read as they were; True if it cannot be written."""
    try:
        prompt = renderer.render(talk.before, talk.tools)
        answered = renderer.render([*talk.before, talk.answer, *talk.new], talk.tools)
        if not (turn := _turn(renderer, prompt, answered)):
            return True
        said = renderer.parse(turn, prompt=prompt, tools=talk.tools)
    except ValueError:
        return True
    told = [call["function"] for call in talk.answer.get("tool_calls", ())]
    calls = [(name, read_arguments(arguments)) for name, arguments in said.calls]
    wanted = [(call["name"], read_arguments(call["arguments"])) for call in told]
    return (said.content.strip(), calls) == (talk.answer["content"], wanted)


def _whole(renderer: Renderer, talk: Talk) -> list[int] | None:
    try:
        return renderer.render([*talk.before, talk.answer, *talk.new], talk.tools)
    except (*TEMPLATE_ERRORS, ValueError):
        return None


def why_useless(renderer: Renderer) -> str | None:
    """The error of a foreign renderer on a question and its follow-up; None if there is none."""
    try:
        prompt = renderer.render([USER], None)
        renderer.parse(prompt)  # the policy may answer anything
        renderer.extend(prompt[-1], [MORE], None)
    except ValueError as error:
        return str(error)
    return None


def check_probes(renderer: Renderer, history: str) -> dict[str, str]:
    """The results of all probes, and of tools. Raises: ConfigError if `agent.history: refuse` and one failed.

    A kind of conversation that the template refuses altogether is no failure: no agent can hold it.
    """
    verdicts = probe(renderer)
    failed = [f"{name}: {why}" for name, why in verdicts.items() if why and not why.startswith(REFUSED)]
    if failed and history == "refuse":
        raise ConfigError(
            f"`agent.history: refuse`, and the chat template does not only append ({'; '.join(failed)}). Set "
            "`agent.history: keep`, which leaves earlier turns as they were sampled, or give the tokenizer "
            "another chat template."
        )
    return verdicts | ({"tools": f"it {NO_TOOLS}"} if _leaves_out_tools(renderer) else {})
