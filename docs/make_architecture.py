"""Writes docs/architecture.svg, the drawing of architecture.md: `python docs/make_architecture.py`.

Plain SVG from the tables below, so that a moved module is one changed line. tests/unit/test_docs.py looks
whether every module that is named exists.
"""

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 1080
INK, SOFT, LINE, PAPER = "#0f172a", "#475569", "#94a3b8", "#ffffff"
CORE, HOST, WORKER = "#ccfbf1", "#e0e7ff", "#fef3c7"
FONT = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='Menlo, Consolas, monospace'"


class Box(NamedTuple):
    """A titled box: a line of text and the module, or the two, that it lives in."""

    colour: str
    title: str
    text: str
    modules: tuple[str, ...]


DECISIONS = "controller/core/decisions"
STATIONS = (
    Box(HOST, "1 read", "a prompt row, on a thread", ("controller/data/prompts.py",)),
    Box(
        HOST,
        "2 journal",
        "before the core sees it",
        ("controller/host/stepper.py", "controller/durability/store.py"),
    ),
    Box(
        WORKER,
        "3 encode",
        "row to prompt tokens",
        (f"{DECISIONS}/supply/scoring.py", "workers/reward/worker.py"),
    ),
    Box(
        CORE,
        "4 admit",
        "how many groups may start",
        (f"{DECISIONS}/placement/dispatch.py", "strategies/admission.py"),
    ),
    Box(CORE, "5 reserve", "a place before its deadline", ("controller/core/state/ledger.py",)),
    Box(
        CORE,
        "6 route",
        "each trajectory to an instance",
        ("controller/core/state/views/choices.py", "strategies/routing.py"),
    ),
    Box(
        WORKER, "7 generate", "tokens, logprobs, versions", ("workers/rollout/worker.py", "workers/engines/")
    ),
    Box(
        CORE,
        "8 report",
        "deltas, until the group is whole",
        (f"{DECISIONS}/workers/plausibility.py", f"{DECISIONS}/placement/reports.py"),
    ),
    Box(WORKER, "9 score", "one reward per response", ("workers/reward/worker.py", "workers/reward/pool.py")),
    Box(
        CORE,
        "10 occupy",
        "filter, advantages, the place",
        (f"{DECISIONS}/supply/training_groups.py", "strategies/outcomes.py"),
    ),
    Box(CORE, "11 consume", "the bound is asserted here", (f"{DECISIONS}/training/training.py",)),
    Box(
        WORKER,
        "12 train",
        "the loss, one optimizer step",
        (f"{DECISIONS}/training/trainer_batches.py", "workers/trainer/trainer.py"),
    ),
)
VERSION = (
    Box(
        WORKER,
        "publish",
        "write, checksum, seal",
        ("workers/trainer/publishing/publisher.py", "workers/weights/store.py"),
    ),
    Box(
        CORE,
        "visible",
        "it can be pulled",
        (f"{DECISIONS}/versions/publication.py", "controller/core/state/policy_versions.py"),
    ),
    Box(
        CORE,
        "choose",
        "who pulls now, and from where",
        (f"{DECISIONS}/versions/pulls.py", f"{DECISIONS}/versions/relay_tree.py"),
    ),
    Box(WORKER, "pull", "interrupt, load, go on", ("workers/rollout/worker.py", "workers/weights/fetch.py")),
    Box(CORE, "evaluate", "held-out prompts, if due", (f"{DECISIONS}/evaluation/evaluation_schedule.py",)),
    Box(
        CORE,
        "retire",
        "nobody needs it; storage is reused",
        (f"{DECISIONS}/versions/publication.py", "workers/weights/store.py"),
    ),
)


def render() -> str:
    """The whole file as text."""
    body = [*_hosts(60), *_heading("A trajectory, in twelve stations", 330), *_rows(STATIONS, 350)]
    body += [*_heading("A policy version", 830), *_rows(VERSION, 850)]
    body += _legend(1075)
    view = f"viewBox='0 0 {WIDTH} 1100' width='{WIDTH}' height='1100'"
    style = (
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
        f"orient='auto-start-reverse'><path d='M0 0L8 4L0 8z' fill='{SOFT}'/></marker></defs>"
    )
    paper = f"<rect width='{WIDTH}' height='1100' fill='{PAPER}'/>"
    lines = [f"<svg xmlns='http://www.w3.org/2000/svg' {view}>", style, paper, *body, "</svg>"]
    return "\n".join(lines) + "\n"


def _hosts(top: int) -> list[str]:
    """Two hosts left and right of the one core."""
    live = ("sockets, clock, processes, disk", "controller/host/")
    virtual = ("an event heap, faults from a seed", "controller/simulation/")
    drawn = _heading("Two hosts, one core", top - 20)
    drawn += _frame(
        390, top, 300, 210, CORE, "the core, pure", ("step(now, event) → commands", "controller/core/")
    )
    drawn += _frame(
        410, top + 90, 260, 46, PAPER, "", ("decisions change the state", "controller/core/decisions/")
    )
    drawn += _frame(
        410, top + 148, 260, 46, PAPER, "", ("it asks strategies, on frozen views", "strategies/")
    )
    drawn += _frame(20, top, 260, 86, HOST, "the live shell", live)
    drawn += _frame(
        20, top + 130, 260, 80, WORKER, "real workers, over ZeroMQ", ("rollout, reward, trainer", "workers/")
    )
    drawn += _frame(800, top, 260, 86, HOST, "the simulation, virtual time", virtual)
    drawn += _frame(
        800,
        top + 130,
        260,
        80,
        WORKER,
        "simulated workers",
        ("the same messages, no tensor", "workers/simulated/"),
    )
    drawn += [_arrow(280, top + 30, 388, top + 30), _text(334, top + 22, "events", SOFT, 13, "middle")]
    drawn += [_arrow(390, top + 56, 282, top + 56), _text(334, top + 74, "commands", SOFT, 13, "middle")]
    drawn += [_arrow(800, top + 30, 692, top + 30), _text(746, top + 22, "events", SOFT, 13, "middle")]
    drawn += [_arrow(690, top + 56, 798, top + 56), _text(746, top + 74, "commands", SOFT, 13, "middle")]
    for x in (150, 930):
        drawn += [
            _arrow(x, top + 88, x, top + 128, both=True),
            _text(x + 10, top + 113, "messages", SOFT, 13),
        ]
    drawn.append(
        _text(20, top + 236, "The live shell writes every event to run.db before the core sees it.", SOFT, 13)
    )
    return drawn


def _rows(boxes: tuple[Box, ...], top: int) -> list[str]:
    """Boxes in rows of three, in reading order."""
    drawn: list[str] = []
    for number, box in enumerate(boxes):
        column, row = number % 3, number // 3
        x, y = 20 + column * 360, top + row * 112
        drawn += _frame(x, y, 320, 92, box.colour, box.title, (box.text, *box.modules))
        if column < 2 and number + 1 < len(boxes):
            drawn.append(_arrow(x + 320, y + 46, x + 358, y + 46))
        elif number + 1 < len(boxes):
            path = f"M{x + 160} {y + 92}V{y + 102}H180V{y + 110}"
            drawn.append(
                f"<path d='{path}' fill='none' stroke='{SOFT}' stroke-width='1.5' marker-end='url(#tip)'/>"
            )
    return drawn


def _legend(y: int) -> list[str]:
    drawn: list[str] = []
    kinds = (
        (CORE, "decided in the core"),
        (WORKER, "done by a worker, asked by the core"),
        (HOST, "done by the host"),
    )
    for number, (colour, words) in enumerate(kinds):
        x = 20 + number * 300
        drawn.append(
            f"<rect x='{x}' y='{y - 12}' width='16' height='16' rx='3' fill='{colour}' stroke='{LINE}'/>"
        )
        drawn.append(_text(x + 24, y + 1, words, SOFT, 13))
    return drawn


def _heading(words: str, y: int) -> list[str]:
    return [_text(20, y, words, INK, 19, weight="bold")]


def _frame(
    x: int, y: int, width: int, height: int, colour: str, title: str, lines: tuple[str, ...]
) -> list[str]:
    """A box with a title, words, and modules in the letters of code."""
    shape = f"x='{x}' y='{y}' width='{width}' height='{height}' rx='8'"
    drawn = [f"<rect {shape} fill='{colour}' stroke='{LINE}'/>"]
    at = y + (22 if title else 2)
    if title:
        drawn.append(_text(x + 12, at, title, INK, 15, weight="bold"))
    for line in lines:
        at += 18
        is_module = "/" in line
        line = line.replace("controller/core/d", "core/d").replace("controller/core/s", "core/s")
        drawn.append(
            _text(x + 12, at, line, SOFT if is_module else INK, 12 if is_module else 13, font=is_module)
        )
    return drawn


def _text(
    x: int, y: int, words: str, colour: str, size: int, anchor: str = "start", *, weight: str = "normal",
    font: bool = False,
) -> str:  # fmt: skip
    style = f"{MONO if font else FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}'"
    return f"<text x='{x}' y='{y}' fill='{colour}' {style}>{escape(words)}</text>"


def _arrow(x1: int, y1: int, x2: int, y2: int, *, both: bool = False) -> str:
    start = " marker-start='url(#tip)'" if both else ""
    line = f"x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{SOFT}' stroke-width='1.5'"
    return f"<line {line} marker-end='url(#tip)'{start}/>"


if __name__ == "__main__":
    (Path(__file__).resolve().parent / "architecture.svg").write_text(render(), encoding="utf-8")
