"""Checks whether the chat template lets an agent's conversation go on from the tokens that it has.

Invariant: no tokenizer is loaded in this process; the agent worker's own probe loads it, in another process.
"""

from collections.abc import Iterator
from pathlib import Path

from controller.check.data import Remark
from controller.check.source import asks_at_door
from controller.config.models import Config
from protocol.asking import ask
from protocol.errors import Unanswered
from protocol.files import is_file

KEY = "agent.history"
LIMIT_S = 120.0  # to import transformers and load a tokenizer
OWN = "agent.renderer: "  # begins a problem of the user's own renderer
REFUSED = "the template refuses it"
NO_TEMPLATE = (
    "has no chat template, so `policy.chat` and clients of the door cannot be answered; `policy.generate` "
    "can. Give the tokenizer a template, or set `agent.renderer: plain`."
)
BECOMES = {
    "keep": "With `keep`, earlier turns stay as they were sampled, and are trained so.",
    "template": "With `template`, a turn behind such a past begins a trajectory of its own, whose past is "
    "computed again, by the engine and by the trainer.",
}
KV = (
    "`template`, with staleness.keep_kv: a turn whose past is written otherwise finds no keys and values to "
    "keep, and is prefilled whole."
)


def template_remarks(config: Config, directory: Path) -> Iterator[Remark]:
    """Remarks on the chat template of an agent's model in `directory`; none before the model is made."""
    agent = config.agent
    if not agent.is_on or agent.renderer == "plain" or not is_file(directory / "config.json"):
        return
    kwargs = config.data.chat_template_kwargs
    question = {"model": str(directory), "agent": agent.model_dump_json(), "template_kwargs": kwargs}
    try:
        problem, verdicts, doubts = ask("workers.agent.try_template", question, limit_s=LIMIT_S)
    except Unanswered as error:
        yield "error", "model.path", f"the process that was to try the chat template in {directory} {error}."
        return
    if problem is not None:
        is_own, text = problem.startswith(OWN), problem.removeprefix(OWN)
        yield "error", "agent.renderer" if is_own else "model.path", text
    elif verdicts is None:
        yield (
            "error" if agent.has_door or asks_at_door(agent.import_path) else "note",
            "agent.renderer",
            f"the tokenizer in {directory} {NO_TEMPLATE}",
        )
    else:
        yield from _of_verdicts(verdicts, agent.history)
        for doubt in doubts:
            yield "note", "agent.renderer", f"`{agent.renderer}` {doubt}."
        if agent.history == "template" and config.staleness.keep_kv:
            yield "note", KEY, KV


def _of_verdicts(verdicts: dict[str, str], history: str) -> Iterator[Remark]:
    failed = {name: why for name, why in verdicts.items() if why and not why.startswith(REFUSED)}
    refused = [name for name, why in verdicts.items() if why.startswith(REFUSED)]
    appended = [name for name, why in verdicts.items() if not why]
    if appended:
        yield "note", KEY, f"the chat template only appends: {', '.join(appended)}."
    if refused:
        yield (
            "note",
            KEY,
            f"the chat template refuses {', '.join(refused)}: no agent of this model can have it.",
        )
    told = "; ".join(f"{name}: {why}" for name, why in failed.items())
    if failed and history == "refuse":
        yield "error", KEY, f"`refuse`, and {told}. Set `keep`, or give the tokenizer another chat template."
    elif failed:
        yield (
            "note",
            KEY,
            f"{told}. {BECOMES[history]}",
        )
