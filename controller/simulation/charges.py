"""Costs of a simulated cluster beside its engines: the forward pass of the trainer, and the controller.

Invariant: costs of 0 change nothing.
"""

from collections import deque
from collections.abc import Callable

from controller.config.models import Config
from controller.core.events import Event


def train_token_s(config: Config) -> float:
    """Seconds of a train step per token, the forward pass for proximal logprobs included."""
    simulation, trainer = config.simulation, config.trainer
    has_pass = trainer.proximal == "recompute" and not trainer.is_supervised
    return simulation.train_token_s * (1 + (simulation.recompute_share if has_pass else 0.0))


class Desk:
    """A controller that takes `event_s` seconds for each event, one after the other.

    Invariant: events are taken in the order of their arrival, each after the one before is done.
    """

    def __init__(self, event_s: float, *, take: Callable[[Event], None], on: Callable[..., None]) -> None:
        """`take(event)` handles one event; `on(time_s, action)` calls an action at that time."""
        self.event_s = event_s
        self._take, self._on = take, on
        self._waiting: deque[Event] = deque()
        self._is_due = False  # the first of them has its time
        self._free_s = 0.0

    def bring(self, now: float, event: Event) -> None:
        """Take an event now, or when its turn comes."""
        if not self.event_s:
            self._take(event)
            return
        self._waiting.append(event)
        if not self._is_due:
            self._call(max(now, self._free_s))

    def _call(self, at: float) -> None:
        self._is_due = True
        self._on(at, self._next, at)

    def _next(self, now: float) -> None:
        self._free_s = now + self.event_s
        self._take(self._waiting.popleft())
        self._is_due = False
        if self._waiting:
            self._call(self._free_s)
