"""Calls a reward function once, for `launch.py check --call-reward`; by way of `protocol.asking`.

Invariant: the function gets what it would get in a run, but for token ids, which are made up.
"""

import asyncio
import traceback
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from protocol.importing import load_object
from workers.reward_functions import ScoreRequest, adapt


def answer(question: Mapping[str, Any]) -> tuple[str | None, list[float]]:
    """(what went wrong, the rewards)."""
    try:
        row = question["row"] or _first_row(**question["prompts"])
        scorer = adapt(load_object(question["function"]))
        request = _request(row, list(question["responses"]))
        return None, asyncio.run(_within(question["timeout_s"], scorer(request)))
    except ConfigError as error:
        return str(error), []
    except TimeoutError:
        return f"it took longer than `reward.timeout_s` = {question['timeout_s']:g} s.", []
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        lines = "".join(traceback.format_exception(error)[-4:])
        return f"it raised {type(error).__name__}: {error}.\n{lines.rstrip()}", []


def _first_row(path: str, seed: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """Of a function of prompts, with the names that the reward knows."""
    row = dict(next(iter(load_object(path)(seed=seed))))
    return {name: value for name, value in row.items() if name not in columns.values()} | {
        name: row[source] for name, source in columns.items()
    }


def _request(row: Mapping[str, Any], responses: list[str]) -> ScoreRequest:
    return ScoreRequest(
        group=0,
        row=row,
        prompt=row.get("prompt"),
        prompt_ids=[0],
        completions=responses,
        completion_ids=[[*range(len(response.split()))] for response in responses],
        endings=["stop"] * len(responses),
    )


async def _within(limit_s: float, scores: Any) -> list[float]:
    async with asyncio.timeout(limit_s):
        return await scores
