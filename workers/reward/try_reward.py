"""Calls a reward function once, for `launch.py check --call-reward`, in a process of `protocol.asking`.

Invariant: the function gets the arguments and the time limit of a run, except token ids, which are made up.
"""

import asyncio
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter

from protocol.errors import ConfigError
from protocol.importing import load_object
from protocol.rewards.kinds import AnyReward, find
from workers.reward import functions
from workers.reward.functions import ScoreRequest, adapt
from workers.reward.kinds.interface import Place, Unscorable, make

OURS = (__file__, functions.__file__)
NOTHING = object()  # in place of a column that a row lacks; null is a value


class _TooLong(BaseException):
    """Not an Exception, so that the function does not catch it as an error of its own."""


def answer(question: Mapping[str, Any]) -> tuple[str | None, list[float]]:
    """(the error, the rewards)."""
    limit_s = question["timeout_s"]
    try:
        row = question["row"] or _first_row(**question["prompts"])
        reward = TypeAdapter(AnyReward).validate_json(question["reward"], strict=False)
        scorer = adapt(make(reward, Place(*question["place"])))
        request = _request(row, list(question["responses"]))
        with _within(limit_s):
            return None, asyncio.run(scorer(request))  # type: ignore[arg-type]  # a coroutine
    except (ConfigError, Unscorable) as error:
        return str(error), []
    except _TooLong:
        return f"it took longer than `reward.timeout_s` = {limit_s:g} s, after which a run cuts it off.", []
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        return f"it raised {type(error).__name__}: {error}.{notes}\n{_where(error)}", []


def _where(error: BaseException) -> str:
    """The part of the traceback that is in the user's code."""
    trace = traceback.extract_tb(error.__traceback__)
    ours = [place for place, frame in enumerate(trace) if frame.filename in OURS]
    return "".join(traceback.format_list(trace[ours[-1] + 1 :] if ours else trace)).rstrip()


def _first_row(path: str, seed: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """The first row of a function of prompts, under the column names that the reward knows.

    Raises: ConfigError if it lacks a column.
    """
    row = dict(next(iter(load_object(path)(seed=seed))))
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    for name, column in columns.items():
        kept[name] = find(row, column, NOTHING)
        if kept[name] is NOTHING:
            raise ConfigError(
                f"The first row has no column {column!r}, which `data.columns` names; it has "
                f"{sorted(map(str, row))}."
            )
    return kept


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


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raises: _TooLong in the code that runs when the limit passes."""

    def too_late(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
