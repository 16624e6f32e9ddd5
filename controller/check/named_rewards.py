"""Checks built-in rewards before a run starts: their options, and the columns that they need.

Invariant: no reward is imported or called; of a reward model only config.json is read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from controller.check.data import Level, Remark, Sample
from protocol.files import is_file
from protocol.rewards.classifier import output_problem
from protocol.rewards.kinds import KINDS, JudgeReward, ModelReward, NamedReward, find
from protocol.rewards.shapes import MESSAGES, TURNS


def named_problems(
    entry: NamedReward, scored: Sequence[Sample], *, is_agent: bool = False
) -> Iterator[tuple[Level, str]]:
    """Problems of a reward with the rows that it scores. `is_agent`: it scores episodes."""
    if isinstance(entry, ModelReward):
        file = Path(entry.path) / "config.json"
        if problem := output_problem(entry.path, file.read_bytes() if is_file(file) else None):
            yield "error", problem
    if isinstance(entry, JudgeReward) and not re.match(r"https?://[^/\s]+", entry.base_url):
        yield "error", f"`base_url` is {entry.base_url!r}; expected one such as http://localhost:8000/v1."
    for column in KINDS[entry.kind].columns(entry):
        for sample in scored:
            rows = [row for row in sample.rows if not _is_made(entry, column, row, is_agent=is_agent)]
            lacking = [row for row in rows if find(row, column) is None]
            if not lacking:
                continue
            of = "" if sample.section == "data" else f" (rows of {sample.section})"
            has = f"`{entry.label}` needs the column `{column}`, and"
            there = ", ".join(lacking[0]) or "(none)"
            if len(lacking) == len(sample.rows):
                what = f"the first row has only {there}{of}"
                yield "error", f"{has} {what}. Name the column in this reward, or map it in `data.columns`."
            else:
                yield "note", f"{has} {len(lacking)} of the first {len(sample.rows)} rows lack it{of}."


def _is_made(entry: NamedReward, name: str, row: Mapping[str, object], *, is_agent: bool) -> bool:
    """Whether a judge gets this name without a column: for the conversation, and the turns of an episode."""
    if not isinstance(entry, JudgeReward):
        return False
    return (is_agent and name in (MESSAGES, TURNS)) or (
        name == MESSAGES and isinstance(row.get("prompt"), list)
    )


def unscored_remarks(rewards: Sequence[NamedReward], samples: Sequence[Sample]) -> Iterator[Remark]:
    """Remarks on rewards that score none of the first rows, and on rows that no reward scores."""
    rows = [row for sample in samples for row in sample.rows]
    if not rows:
        return
    for number, entry in enumerate(rewards):
        if not any(map(entry.is_for, rows)):
            shown = ", ".join(f"{column}: {wanted}" for column, wanted in entry.when.items())
            yield (
                "note",
                f"reward.rewards.{number}.when",
                f"none of the first {len(rows)} rows has {shown}: `{entry.label}` scores none of them.",
            )
    unscored = [row for row in rows if not any(entry.is_for(row) for entry in rewards)] if rewards else []
    if unscored:
        level: Level = "error" if len(unscored) == len(rows) else "note"
        yield (
            level,
            "reward.rewards",
            f"no reward is for {len(unscored)} of the first {len(rows)} rows: they are set aside as failures."
            " Expected a reward without `when`, or one whose `when` fits them.",
        )
