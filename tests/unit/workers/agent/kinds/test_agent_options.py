"""What `agent.options` gives is compared with what a class takes before an episode begins."""

import functools

import pytest

from protocol.errors import ConfigError
from workers.agent.kinds.chosen_kind import make_episode


class Made:
    def __init__(self, digits, *, is_on=True):
        self.digits = digits

    def reset(self):
        """Nothing to say."""

    def look(self) -> str:
        """Look at the digits."""
        return self.digits

    def get_reward(self):
        return 1.0


def with_digits(init):
    @functools.wraps(init)
    def made(self):
        init(self, digits=3)

    return made


class Filled(Made):
    __init__ = with_digits(Made.__init__)


class MadeGym:
    def __init__(self, size=3):
        self.size = size

    def reset(self, seed, options):
        return "observed", {}

    def step(self, text):
        return "observed", 1.0, True, False, {}


def make_gym(size):
    return MadeGym(size)


@pytest.mark.parametrize(
    ("target", "kind", "fits", "unfit", "words"),
    [
        (Made, "tools", {"digits": 3}, {}, "class Made cannot be made of .* 'digits'"),
        (Made, "tools", {"digits": 3, "is_on": False}, {"digits": 3, "on": 1}, "class Made .* 'on'"),
        (Filled, "tools", {}, {"digits": 3}, "class Filled .* 'digits'"),
        (MadeGym, "gym", {}, {"sizes": 3}, "class MadeGym cannot be made of .* 'sizes'"),
        (make_gym, "gym", {"size": 2}, {}, "function make_gym cannot be called with .* 'size'"),
    ],
)
def test_options_that_a_class_does_not_take_are_refused_before_an_episode(target, kind, fits, unfit, words):
    make_episode(target, kind=kind, options=fits)
    with pytest.raises(ConfigError, match=words):
        make_episode(target, kind=kind, options=unfit)
