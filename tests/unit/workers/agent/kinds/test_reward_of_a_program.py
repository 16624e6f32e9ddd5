"""The reward in the last line that a program prints."""

import json

import pytest

from workers.agent.kinds.command import _reward


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "plain"])
def test_a_text_beside_the_reward_may_hold_what_unicode_takes_for_the_end_of_a_line(text):
    line = json.dumps({"reward": 0.5, "said": text}, ensure_ascii=False)
    assert _reward(f"It works.\n{line}\n\n".encode()) == 0.5


def test_lines_end_as_terminals_and_other_systems_end_them():
    assert _reward(b'50 %\r100 %\r{"reward": 1}\r\n') == 1
    assert _reward(b'{"reward": 1}\nThe end.\n') is None
