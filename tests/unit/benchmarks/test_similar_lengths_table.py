"""The table of what batches of similar length gain: its rules, and the most that each can gain."""

import pytest

from benchmarks.similar_lengths import RULES, Figures, at_most, row

pytest.importorskip("scipy", reason="bounds need scipy")


def test_the_sampler_may_gain_more_than_streaming_and_both_most():
    found = {name: at_most("wide", 1, 0.8, name) for name in RULES}
    assert found["greedy"] == found["staleflow"] == "1.00"
    assert found["areal"] == "-"
    assert found["similar"] == found["shuffled"]
    assert found["similar, streaming"] == found["shuffled, streaming"]
    assert 1 < float(found["streaming"]) < float(found["similar"]) < float(found["similar, streaming"])


def test_a_row_ends_with_what_can_be_gained_at_most():
    one = Figures(100.0, 150.0, 1.0, 0.0, 0.65, 0.0)
    cells = [cell.strip() for cell in row(("wide", "1"), [one], [one], "1.58").strip("|").split("|")]
    assert cells[-3:] == ["0.65", "+0.0%", "1.58"]
