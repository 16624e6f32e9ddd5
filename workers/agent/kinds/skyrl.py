"""Environments of SkyRL, `init(prompt)` and `step(text)`, adapted to Gymnasium's interface.

Invariant: an invalid result of an environment is a TypeError that says what was expected.
Source: SkyRL a956457, skyrl-gym/skyrl_gym/envs/base_text_env.py, `BaseTextEnv`.
"""

import inspect
from collections.abc import Mapping
from typing import Any

STEP = "{observations, reward, done}, as SkyRL has it"


class EnvironmentConfig(dict[str, Any]):
    """`agent.options` in SkyRL's form of a configuration: by key or by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"`agent.options` has no {name!r}; it has {', '.join(self) or 'none'}."
            ) from None


def is_skyrl(target: Any) -> bool:
    """Whether the object is such a class, or a function that makes one."""
    return not hasattr(target, "reset") and all(
        callable(getattr(target, name, None)) for name in ("init", "step")
    )


def make_skyrl(target: Any, options: Mapping[str, Any], row: Mapping[str, Any]) -> "SkyrlEnvironment":
    """An environment for an episode, with the arguments that it takes by name: configuration and row."""
    takes = inspect.signature(target).parameters
    given = {"env_config": EnvironmentConfig(options), "extras": dict(row)}
    named = {name: value for name, value in given.items() if name in takes}
    return SkyrlEnvironment(target(**named, **({} if "env_config" in named else options)))


class SkyrlEnvironment:
    """An environment of SkyRL with Gymnasium's interface."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)  # `close`, `save` and `load`, if it has them

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Any:
        """The first messages."""
        del seed  # it takes no seed
        prompt = options.get("prompt")
        if not prompt:
            raise TypeError(
                f"The row has no `prompt`, which `init` takes; it has {', '.join(options) or 'nothing'}. "
                "Give such a column, or have `data.prompt` make it."
            )
        told = self._environment.init(
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        )
        if not (isinstance(told, tuple) and len(told) == 2):
            raise TypeError(
                f"`init` returned {told!r:.80}; expected (messages, information), as SkyRL has it."
            )
        return told

    def step(self, text: str) -> tuple[Any, Any, bool, bool, Any]:
        """The environment's reply to an answer."""
        told = self._environment.step(text)
        if not (isinstance(told, Mapping) and {"observations", "reward", "done"} <= {*told}):
            raise TypeError(f"`step` returned {told!r:.80}; expected {STEP}.")
        return told["observations"], told["reward"], bool(told["done"]), False, told.get("metadata")
