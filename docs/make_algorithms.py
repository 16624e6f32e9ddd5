"""Writes the table of presets into docs/algorithms.md: `python -m docs.make_algorithms`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from protocol.algorithms import ALGORITHMS, SAMPLING  # noqa: E402
from protocol.settings import TrainerSettings  # noqa: E402

COLUMNS = ("baseline", "advantage_scale", "loss", "clip_low", "clip_high", "loss_aggregation")
CLIPPING = ("ppo", "gspo", "cispo")
"""Losses that read `clip_low` and `clip_high`."""
BEGIN, END = "<!-- presets: python -m docs.make_algorithms -->\n", "<!-- end of presets -->"


def preset_table() -> str:
    """What each algorithm resolves to, as a table between two marks."""
    head = f"| `algorithm` | {' | '.join(f'`{name}`' for name in COLUMNS)} | also |\n"
    return f"{BEGIN}{head}|{'---|' * (len(COLUMNS) + 2)}\n{''.join(map(_row, ALGORITHMS))}{END}"


def _row(algorithm: str) -> str:
    settings = TrainerSettings.model_validate({"algorithm": algorithm})
    has_bounds = settings.loss in CLIPPING
    cells = [
        str(getattr(settings, name)) if has_bounds or not name.startswith("clip_") else "" for name in COLUMNS
    ]
    also = [f"`{key}: {value}`" for key, value in ALGORITHMS[algorithm].items() if key not in COLUMNS]
    if algorithm in SAMPLING:
        also.append(f"`staleness.filter: {SAMPLING[algorithm]}`")
    return f"| `{algorithm}` | {' | '.join(cells)} | {', '.join(also)} |\n"


if __name__ == "__main__":
    page = ROOT / "docs" / "algorithms.md"
    found = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    page.write_text(found.sub(lambda _: preset_table(), page.read_text()), encoding="utf-8")
