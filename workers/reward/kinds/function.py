"""A function of the user's, by import path."""

from typing import Any

from protocol.importing import load_object
from protocol.rewards.kinds import FunctionReward
from workers.reward.kinds.interface import Place


def make(options: FunctionReward, place: Place) -> Any:
    """The function itself. Raises: ConfigError if it cannot be imported."""
    return load_object(options.function)
