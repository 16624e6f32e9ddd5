"""What holds of every run directory whose run has come to its end."""

import json
from pathlib import Path
from typing import Any

from controller.durability.recording import Recording
from controller.durability.replay import Verdict, replay


def checked_end(run: Path) -> tuple[dict[str, Any], Verdict]:
    """The summary and the replay of a success that kept its bound and counted each token once."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["is_success"], summary["reason"]
    assert summary["staleness/violations"] == 0
    ends = ("trained", "aborted", "filtered", "lost", "in_flight")
    assert summary["tokens/generated"] == sum(summary[f"tokens/{end}"] for end in ends)
    with Recording(run) as recording:
        verdict = replay(recording)
    assert verdict.is_equal, verdict
    return summary, verdict
