"""Environments of SkyRL, played like those of Gymnasium."""

import pytest

from tests.unit.workers.agent.kinds.test_agent_kinds import CLOSED, play
from workers.agent.kinds.results import Returned


class Skyward:
    """SkyRL's interface."""

    def __init__(self, env_config, extras=None):
        self.left, self.extras = env_config.start, extras

    def init(self, prompt):
        return [*prompt, {"role": "user", "content": f"{self.left} left for {self.extras['who']}"}], {}

    def step(self, action):
        self.left -= 1
        told = [] if not self.left else [{"role": "user", "content": f"{self.left} left"}]
        done = not self.left
        return {"observations": told, "reward": 0.5 * (action == "down"), "done": done, "metadata": {}}

    def close(self):
        CLOSED.append(self.left)


class Unread(Skyward):
    def step(self, action):
        return {"observations": [], "reward": 0.5}


class Unbegun(Skyward):
    def init(self, prompt):
        return prompt


SKY = {"row": {"prompt": "go", "who": "you"}, "options": {"start": 2}}


def test_an_environment_of_skyrl_is_played_like_one_of_gymnasium():
    CLOSED.clear()
    result, notes, asked = play(Skyward, "down", "up", **SKY)
    assert (result, notes.rewards, CLOSED) == (Returned.TURN_REWARDS, {0: 0.5, 1: 0.0}, [0])
    assert asked[1]["chat"] == [
        {"role": "user", "content": "go"},
        {"role": "user", "content": "2 left for you"},
        {"role": "assistant", "content": "down"},
        {"role": "user", "content": "1 left"},
    ]


@pytest.mark.parametrize(
    ("target", "change", "words"),
    [
        (Unread, {}, "expected .observations, reward, done., as SkyRL has it"),
        (Unbegun, {}, "`init` returned .*expected .messages, information., as SkyRL has it"),
        (Skyward, {"row": {"who": "you"}}, "The row has no `prompt`, which `init` takes; it has who"),
    ],
)
def test_an_environment_that_is_none_of_skyrl_s_is_told_so(target, change, words):
    with pytest.raises(TypeError, match=words):
        play(target, "down", **(SKY | change))


def test_an_option_that_an_environment_of_skyrl_looks_for_is_named():
    with pytest.raises(AttributeError, match=r"`agent\.options` has no 'start'; it has step"):
        play(Skyward, "down", **(SKY | {"options": {"step": 2}}))
