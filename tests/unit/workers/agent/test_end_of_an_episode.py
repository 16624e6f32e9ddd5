"""What an episode says at its end reaches the controller, or is refused where it comes in."""

import json

import pytest

from protocol.messages import EpisodeEnded
from protocol.wire.codec import Packet, encode
from workers.agent.child import _ended
from workers.agent.policy import MAX_LOG_CHARS, AgentPolicy
from workers.children.packets import GarbageError

END = {"reward": 1.0, "earned": "end", "turn_rewards": [], "metrics": {}, "limit": ""}


def test_a_line_with_half_a_character_or_a_command_to_a_terminal_is_escaped_and_sent():
    policy = AgentPolicy(None, seed=0)
    policy.log("half \ud800, \x1b[2J red")
    ended = _ended(json.loads(json.dumps(END | {"log": policy.notes.log})))
    assert ended.log == "half \\ud800, \\x1b[2J red\n"
    encode(Packet(0, 0, EpisodeEnded(0, 0, 1, "stop", (1.0,), log=ended.log), ()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"log": 3},
        {"log": None},
        {"log": "half \ud800"},
        {"log": "x" * (MAX_LOG_CHARS + 1)},
        {"metrics": {"half \ud800": 1.0}},
        {"metrics": {f"{n}": 1.0 for n in range(65)}},
        {"limit": "time"},
        {"earned": "alone"},
        {"earned": None},
        {"earned": "turns", "reward": None},
    ],
)
def test_what_could_not_be_sent_is_garbage_of_the_process(wrong):
    assert _ended(dict(END)).log == ""
    with pytest.raises(GarbageError):
        _ended(END | wrong)
