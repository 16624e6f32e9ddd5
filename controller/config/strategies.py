"""Loads the strategies that a configuration names: built-in ones, or the user's, whose answers are checked.

Invariant: only here is a strategy found by its name; code that makes a core passes in strategies from here.
"""

from typing import Any

from controller.config.models import Config
from protocol.importing import load_object
from strategies.kinds import STRATEGIES, Strategies, hold


def load_strategies(config: Config) -> Strategies:
    """One strategy of each kind. Raises: ConfigError if one cannot be imported, or takes other arguments."""
    staleness = config.staleness
    return Strategies(
        route=load_strategy("routing", staleness.routing),
        admit=load_strategy("admission", staleness.admission),
        migrate=load_strategy("migration", staleness.migration),
        synchronize=load_strategy("synchronization", staleness.synchronization),
        keep=load_strategy("filter", staleness.filter),
        schedule=load_strategy("schedule", config.data.schedule),
        adapt=load_strategy("pacing", staleness.pacing),
        sample=load_strategy("sampler", staleness.sampler),
        credit=load_strategy("turn_advantages", config.agent.turn_advantages),
    )


def load_strategy(field: str, name: str) -> Any:
    """The strategy that the key `key_of(field)` names. Raises: ConfigError."""
    built_in = STRATEGIES[field]
    return built_in[name] if name in built_in else hold(field, load_object(name))
