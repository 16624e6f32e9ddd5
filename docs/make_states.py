"""Writes docs/states.md from the tables of the core: `python docs/make_states.py`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.core.state.transitions import GONE, MACHINES, Machine  # noqa: E402

INTRODUCTION = """# States

Four things of a run have a state: groups, trajectories, workers and policy versions. The tables in
`controller/core/state/transitions.py` say which event takes each of them from which state to which. A move
that its table does not have raises. `Core.check` looks for what has to be true in each state.

A group is all trajectories of one prompt. What leaves the run for good is `gone`: the end of a drawing.
A trajectory ends with its group.

Generated from these tables by `python docs/make_states.py`; do not edit.
"""


def render() -> str:
    """The whole page as text."""
    return INTRODUCTION + "".join(_section(machine) for machine in MACHINES)


def _section(machine: Machine[Any, Any]) -> str:
    return (
        f"\n## {machine.subject.capitalize()}\n\n```mermaid\n{_drawing(machine)}\n```\n\n"
        f"{_table('state', machine.states)}\n{_table('event', machine.events)}"
    )


def _drawing(machine: Machine[Any, Any]) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, row in machine.moves.items():
        for event, target in row.items():
            arrows.setdefault((state, "[*]" if target == GONE else target), []).append(event)
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    lines += [
        f"    {state} --> [*]" for state in machine.states if state not in machine.moves and state != GONE
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {machine.begins}", *lines])


def _table(head: str, meanings: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    return "\n".join([f"| {head} | what it means |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "states.md").write_text(render(), encoding="utf-8")
