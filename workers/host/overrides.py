"""Settings that one machine has differently: `key=value` arguments of its worker."""

import os.path
from typing import ClassVar

from pydantic import ValidationError

from protocol.errors import ConfigError
from protocol.messages import Role
from protocol.settings import WorkerSettings
from workers.weights.address import require_own


class Overrides:
    """`key=value` for the keys that do not change what is computed, applied to the settings of a worker."""

    ALLOWED: ClassVar[dict[Role, tuple[str, ...]]] = {
        "rollout": (
            "rollout.engine", "rollout.device", "rollout.threads", "rollout.max_running", "model.dtype",
            "model.path", "weights.host",
        ),
        "reward": ("reward.processes", "reward.concurrency", "reward.device", "model.path"),
        "agent": ("agent.processes", "agent.concurrency", "model.path"),
        "trainer": ("trainer.device", "trainer.threads", "model.path", "weights.host"),
    }  # fmt: skip

    def __init__(self, role: Role, words: list[str]) -> None:
        """Raises: ConfigError if an argument does not override a key that this role may set."""
        self._pairs: list[tuple[str, str, str]] = []
        for word in words:
            key, separator, value = word.partition("=")
            if not separator or key not in self.ALLOWED[role]:
                raise ConfigError(
                    f"{word!r} is not something that a {role} worker can have of its own; expected KEY=VALUE "
                    f"with one of {', '.join(self.ALLOWED[role])}. The rest is the same for all: set it "
                    "where the controller starts."
                )
            if key == "weights.host":
                require_own(value, source=key)
            if key == "model.path" and value:  # of this machine, and not of the run directory or its user
                value = os.path.abspath(os.path.expanduser(value))
            section, _, name = key.partition(".")
            self._pairs.append((section, name, value))

    def __call__(self, settings: WorkerSettings) -> WorkerSettings:
        """The settings of this worker. Raises: ConfigError if a value does not fit."""
        for section, field, value in self._pairs:
            old = getattr(settings, section)
            try:
                new = type(old).model_validate(old.model_dump() | {field: value}, strict=False)
            except ValidationError as error:
                raise ConfigError(f"{section}.{field}={value}: {error.errors()[0]['msg']}.") from None
            settings = settings.model_copy(update={section: new})
        return settings
