"""Tries a chat template for `launch.py check`, as an agent worker does; by way of `protocol.asking`."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.own import OwnRenderer
from workers.agent.rendering.probes import probe, why_useless


def prepare_process() -> None:
    """Transformers imports torch wherever it is, and a tokenizer does not need it."""
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]  # None hides it
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def answer(question: Mapping[str, Any]) -> tuple[str | None, dict[str, str] | None]:
    """(why there is no tokenizer or renderer, the verdict of each probe); both None without a template."""
    settings = AgentSettings.model_validate_json(question["agent"], strict=False)
    try:
        renderer = make_renderer(question["model"], settings)
    except ConfigError as error:
        return " ".join(str(error).split()), None
    if isinstance(renderer, OwnRenderer) and (problem := why_useless(renderer)) is not None:
        return " ".join(problem.split()), None
    return None, None if renderer is None else probe(renderer)
