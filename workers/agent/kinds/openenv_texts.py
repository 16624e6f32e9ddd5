"""Converts texts to OpenEnv actions, and observations to texts: by a field, as JSON, or by a function.

Invariant: a text of the policy raises nothing but Mistake, whose message goes back to the policy.
"""

import inspect
import json
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from protocol.importing import load_object

AS_JSON = "json"
ENVIRONMENTS_OWN = ("metadata", "done", "reward")
"""Fields of every action or observation that are not text for the policy."""


class Mistake(Exception):
    """The policy's text is not a valid action; the message is for the policy."""


class ActionMaker:
    """Makes an action from a text of the policy."""

    def __init__(self, how: str, schema: Mapping[str, Any]) -> None:
        """`how`: a field, `json`, or an import path; "" for the only field of text. Raises: ConfigError."""
        self._how = how or _only_text(schema, "action")
        self._function = load_object(how) if ":" in how else None

    async def __call__(self, text: str) -> Any:
        """The action. Raises: Mistake."""
        if self._function is not None:
            try:
                made = self._function(text)
                return await made if inspect.isawaitable(made) else made
            except ValueError as error:
                raise Mistake(str(error)) from None
        if self._how != AS_JSON:
            return {self._how: text}
        try:
            action = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Mistake(f"the action is no JSON: {error}.") from None
        if not isinstance(action, dict):
            raise Mistake("the action is no JSON object.")
        return action


class TextMaker:
    """Makes a text for the policy from an observation."""

    def __init__(self, how: str, schema: Mapping[str, Any]) -> None:
        """As `ActionMaker`, but an observation with several fields becomes JSON."""
        texts = _fields(schema, "string")
        self._how = how or (texts[0] if len(texts) == 1 else AS_JSON)
        self._function = load_object(how) if ":" in how else None
        self._is_guess = not how

    def if_any(self, observation: Mapping[str, Any]) -> str:
        """The text of an observation; "" if it has none and no field was named. Raises: RuntimeError."""
        if not self._is_guess:
            return str(self(observation))
        return next((value for value in observation.values() if isinstance(value, str)), "")

    def __call__(self, observation: Any) -> Any:
        """Text, or chat messages. Raises: RuntimeError if the observation has no such field."""
        if self._function is not None:
            return self._function(observation)
        if self._how == AS_JSON or not isinstance(observation, Mapping):
            texts = (
                [value for value in observation.values() if isinstance(value, str)] if self._is_guess else []
            )
            return texts[0] if len(texts) == 1 else json.dumps(observation)
        if self._how not in observation:
            raise RuntimeError(
                f"`agent.options.observation` is {self._how!r}; the observation has "
                f"{', '.join(observation) or 'no fields'}. Name one of these, or `json`."
            )
        return observation[self._how]


def _only_text(schema: Mapping[str, Any], what: str) -> str:
    """The only text field of a schema. Raises: ConfigError."""
    texts = _fields(schema, "string")
    if len(texts) != 1:
        every = ", ".join(_fields(schema)) or "none that could be read"
        raise ConfigError(
            f"How a text of the policy becomes an {what} is not said, and the environment's fields for one "
            f"are {every}. Set `agent.options.{what}` to one of these, to `json` if the policy writes the "
            "whole object, or to the import path of a function of the text."
        )
    return texts[0]


def _fields(schema: Mapping[str, Any], kind: str = "") -> list[str]:
    own = {"properties": {}, **schema}["properties"].items()
    fields = {name: each for name, each in own if name not in ENVIRONMENTS_OWN}
    return [name for name, each in fields.items() if not kind or each.get("type") == kind]
