"""A simulated trainer: the time of a step grows with its tokens; its version becomes visible afterwards.

Invariants: one batch at a time, as the core guarantees; versions become visible in order; groups ahead of a
batch take the time of their tokens, one order after the other. With `is_early` a version becomes visible when
the rest of its step begins, which no real trainer can do.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import cast

from protocol import messages
from protocol.messages import Message, ToAnyRole, ToTrainer
from workers.simulated.link import taken_by_link

CHECKPOINT_S = 0.1
ORDER_OF: dict[type[Message], type[Message]] = {
    messages.TrainStepFinished: messages.Train,
    messages.TrainedAhead: messages.TrainAhead,
    messages.CheckpointSaved: messages.SaveCheckpoint,
    messages.Released: messages.Release,
    messages.Serving: messages.Serve,
}
"""By kind of answer of a trainer: the order that it answers."""


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """Times of a trainer, in seconds."""

    attach_s: float = 1.0
    base_s: float = 0.0
    token_s: float = 2.3e-5
    publish_s: float = 0.0
    is_early: bool = False
    offload_s: float | None = None  # to leave or take a shared device; None: it has its own


class SimulatedTrainer:
    """Answers Train and SaveCheckpoint."""

    def __init__(self, times: TrainerTimes, *, now: float = 0.0) -> None:
        self.times = times
        self.busy_s = 0.0
        self._free_s = now  # when its current work is done
        self._ahead_s = 0.0  # spent on groups of the next batch
        self._due: list[tuple[float, int, Message]] = []
        self._count = 0
        self.has_device = self._has_begun = False
        if times.offload_s is None:
            self._begin(now)

    def go_on(self) -> None:
        """Continue after a restart of the controller, without the messages of a start."""
        self._due.clear()
        self._has_begun = True

    def next_wake_s(self) -> float | None:
        """The time of its next message."""
        return self._due[0][0] if self._due else None

    def handle(self, now: float, command: Message) -> list[Message]:
        """Handle one command; returns the immediate messages."""
        order = cast("ToTrainer | ToAnyRole", command)
        match order:
            case messages.TrainAhead(train_version):
                before_s = self.busy_s
                self._later(self._work(now, order, 0.0), messages.TrainedAhead(train_version))
                self._ahead_s += self.busy_s - before_s
            case messages.Train(train_version, _, is_published):
                began = max(now, self._free_s)  # after a change of the device, and after groups ahead
                end, version = self._work(now, order, self.times.base_s), train_version + 1
                metrics = (("loss", 0.0), ("time_s/ahead", self._ahead_s))[: 2 if order.ahead else 1]
                self._ahead_s = 0.0
                self._later(end, messages.TrainStepFinished(version, end - began, metrics))
                if is_published:  # instances have that version: it is made again, and not published
                    return []
                if self.times.is_early:
                    return [self._published(version)]
                self._later(end + self.times.publish_s, self._published(version))
            case messages.SaveCheckpoint(version):
                self._later(now + CHECKPOINT_S, messages.CheckpointSaved(version, f"step_{version}"))
            case messages.Take():
                self.has_device = True
                if self._has_begun:
                    self._free_s = max(now, self._free_s) + (self.times.offload_s or 0.0)
                else:
                    self._begin(now)
            case messages.Release():
                offload_s = self.times.offload_s or 0.0
                self._later(now + offload_s, messages.Released(0, 0, offload_s))
            case messages.Serve():
                return [messages.Serving("tcp://simulated:1")]
            case messages.Retire():
                pass  # it keeps no versions
            case _:
                taken_by_link(order)
        return []

    def wake(self, now: float) -> list[Message]:
        """The messages that are due by now."""
        out: list[Message] = []
        while self._due and self._due[0][0] <= now:
            out.append(heappop(self._due)[2])
            self.has_device = self.has_device and not isinstance(out[-1], messages.Released)
        return out

    def _begin(self, now: float) -> None:
        """Load the model, and publish it."""
        self.has_device = self._has_begun = True
        self._later(now + self.times.attach_s, messages.Ready(0, 0, 0))
        self._later(now + self.times.attach_s + self.times.publish_s, self._published(0))

    def _work(self, now: float, order: messages.Train | messages.TrainAhead, base_s: float) -> float:
        """When an order's tokens and `base_s` are done."""
        tokens = sum(item.prompt_tokens + item.response_tokens for item in order.rest)
        seconds = base_s + self.times.token_s * tokens
        self.busy_s += seconds
        self._free_s = max(now, self._free_s) + seconds
        return self._free_s

    def _later(self, at: float, message: Message) -> None:
        self._count += 1
        heappush(self._due, (at, self._count, message))

    def _published(self, version: int) -> Message:
        return messages.PolicyPublished(version, f"v{version}", f"digest-{version}", 1, self.times.publish_s)
