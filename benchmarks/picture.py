"""Draw a run as one SVG: reward, staleness, idle shares over train steps. `python -m benchmarks.picture RUN
-o FILE`.

Plain SVG out of metrics.jsonl, so that anybody can redraw the README's picture without a plotting library.
"""

import argparse
import json
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 120, 210, 50, 40
INK, GRID = "#334155", "#e2e8f0"
PANELS = (
    ("mean reward", (("reward/mean", "#0f766e"),), None),
    (
        "response length, tokens",
        (("response_length/mean", "#7c3aed"), ("response_length/max", "#c4b5fd")),
        None,
    ),
    ("staleness, versions", (("staleness/mean", "#ea580c"), ("staleness/max", "#fdba74")), None),
    ("idle share", (("idle/trainer", "#2563eb"), ("idle/rollout", "#93c5fd")), 1.0),
)


def place_of(step: int, last: int) -> float:
    """Where a train step lies; the axis goes from 0 to the last."""
    return LEFT + (WIDTH - LEFT - 20) * step / max(1, last)


def ticks(last: int) -> list[int]:
    """At most eight round numbers of train steps, from 0."""
    sizes = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    size = next(size for size in sizes if last < 8 * size)
    return list(range(0, last + 1, size))


def polyline(lines: list[dict], key: str, top: float, ceiling: float, colour: str) -> str:
    """One curve, from the first step to the last."""
    last = lines[-1]["step"]
    points = " ".join(
        f"{place_of(line['step'], last):.1f},{top + HEIGHT * (1 - line[key] / ceiling):.1f}" for line in lines
    )
    return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'


def axis(last: int, bottom: float) -> list[str]:
    """The train steps under all charts."""
    out = [f'<text x="{WIDTH - 20}" y="{bottom + 34}" text-anchor="end">train step</text>']
    for step in ticks(last):
        x = place_of(step, last)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom + 4}" stroke="{GRID}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{step}</text>')
    return out


def panel(lines: list[dict], place: int) -> list[str]:
    """One chart with its axis and legend."""
    title, curves, ceiling = PANELS[place]
    top = TOP + place * (HEIGHT + GAP)
    highest = ceiling or max(line[key] for line in lines for key, _ in curves) or 1.0
    out = []
    for share in (0.0, 0.5, 1.0):
        y = top + HEIGHT * (1 - share)
        out.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" stroke="{GRID}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{highest * share:.3g}</text>')
    out.append(f'<text x="12" y="{top + 14}" font-weight="bold">{escape(title)}</text>')
    for i, (key, colour) in enumerate(curves):
        out.append(f'<text x="12" y="{top + 34 + 18 * i}" fill="{colour}">{escape(key.split("/")[1])}</text>')
        out.append(polyline(lines, key, top, highest, colour))
    return out


def draw(lines: list[dict], summary: dict) -> str:
    """The whole picture."""
    height = TOP + len(PANELS) * (HEIGHT + GAP)
    title = f"{len(lines)} train steps in {summary['time_s']:.0f} s; bound {summary['staleness/max_allowed']}"
    body = axis(lines[-1]["step"], height - GAP)
    body += [piece for place in range(len(PANELS)) for piece in panel(lines, place)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
            f' font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="12" y="26" font-size="16" font-weight="bold">{escape(title)}, '
            f"{summary['staleness/violations']} violations</text>",
            *body,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Read the run, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("run.svg"))
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in (arguments.run / "metrics.jsonl").read_text().splitlines()]
    arguments.output.write_text(draw(lines, json.loads((arguments.run / "summary.json").read_text())))
    print(arguments.output)


if __name__ == "__main__":
    main()
