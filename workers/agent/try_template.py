"""Tests a chat template for `launch.py check` as an agent worker does, in a process of `protocol.asking`."""

from collections.abc import Mapping
from typing import Any

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from protocol.importing import hide_torch
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.library import LibraryRenderer
from workers.agent.rendering.own import OwnRenderer
from workers.agent.rendering.probes import doubts, probe, why_useless
from workers.models.tokenizer import load_tokenizer


def prepare_process() -> None:
    """Prepare the process as for an agent worker."""
    hide_torch()


def answer(question: Mapping[str, Any]) -> tuple[str | None, dict[str, str] | None, list[str]]:
    """(why there is no tokenizer or renderer, the result of each probe, doubts about the library's renderer).

    The first two are None if there is no template.
    """
    settings = AgentSettings.model_validate_json(question["agent"], strict=False)
    try:
        renderer = make_renderer(question["model"], settings)
    except ConfigError as error:
        return " ".join(str(error).split()), None, []
    if renderer is not None and (kwargs := question.get("template_kwargs")):
        try:
            renderer = renderer.with_template_kwargs(kwargs)
        except ValueError as error:
            return " ".join(str(error).split()), None, []
    is_foreign = isinstance(renderer, OwnRenderer | LibraryRenderer)
    if is_foreign and (problem := why_useless(renderer)) is not None:
        return " ".join(problem.split()), None, []
    if renderer is None:
        return None, None, []
    return None, probe(renderer), doubts(renderer, load_tokenizer(question["model"]))
