"""Writes docs/states.md from the tables of the core: `python docs/make_states.py`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.core.state.transitions import GONE, MACHINES, Machine  # noqa: E402

INTRODUCTION = """# States

This page shows in which state a group, a trajectory, a worker or a policy version can be, and which event
takes it from one state to another.

- A group is all trajectories of one prompt. A trajectory ends with its group.
- What leaves the run for good is `gone`: the end of a drawing.
- The tables are in `controller/core/state/transitions.py`. A move that is not in its table raises an
  error.
- `Core.check` checks what has to be true in each state.

`python docs/make_states.py` writes this page from the tables; do not edit it.
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
