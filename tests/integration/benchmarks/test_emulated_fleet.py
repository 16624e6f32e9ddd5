"""The benchmark of a fleet: a real controller among emulated instances says what it has cost."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.fleet.rules import GROUP_SIZE, Begun

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 240.0
TINY = ("--instances=1", "--running=32", "--seconds=2", "--warm_up=0", "--progress_s=0.1", "--port=28641")


def test_a_fleet_of_one_instance_reports_and_its_deltas_are_counted():
    words = [sys.executable, "-m", "benchmarks.fleet", *TINY]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"([0-9]+) deltas/s", done.stdout)[1]) > 0
    for figure in ("us an event", "loop lag: p50", "last token to next route", "memory:", "bytes an event"):
        assert figure in done.stdout


def test_the_first_groups_have_a_part_of_their_length_behind_them_and_the_others_none():
    fresh, begun = Begun(0), Begun(3)
    lengths = [(fresh.length(g, m), begun.length(g, m)) for g in range(6) for m in range(GROUP_SIZE)]
    first, rest = lengths[: 3 * GROUP_SIZE], lengths[3 * GROUP_SIZE :]
    assert all(1 <= left <= whole for whole, left in first)
    assert sum(left for _, left in first) < 0.8 * sum(whole for whole, _ in first)
    assert all(left == whole for whole, left in rest)
