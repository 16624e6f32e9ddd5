"""Commands: all outputs of the core. The host executes them in order and decides nothing.

Invariant: the tag of a command identifies it in fingerprints, and is never reused.
"""

from dataclasses import field
from typing import ClassVar

from controller.core.state.kept_samples import KeptGroup
from protocol.ids import PeerId
from protocol.messages import Message, Role
from protocol.messages.record import record


@record
class Send:
    """Send a message; its frames are read from the payload store, as `message.outgoing_payload()` says."""

    tag: ClassVar[int] = 1
    peer: PeerId
    message: Message


@record
class Spawn:
    """Start a local worker process of this name, `delay_s` seconds from now."""

    tag: ClassVar[int] = 2
    name: str
    role: Role
    delay_s: float = 0.0


@record
class ReadPrompts:
    """Read this many more rows and answer with PromptsRead."""

    tag: ClassVar[int] = 3
    count: int
    sources: tuple[int, ...] = ()  # the source of each row, by number, in order; () if there is only one


@record
class ReadHeldOut:
    """Store the rows of all held-out prompts as groups from `first_group` on, and answer with HeldOutRead."""

    tag: ClassVar[int] = 10
    first_group: int


@record
class DropPayload:
    """Delete the payload of these groups: nothing will read it again."""

    tag: ClassVar[int] = 4
    groups: tuple[int, ...]


@record
class Forget:
    """Free the session and socket of a peer that is gone or unwanted, and kill its process if it is local."""

    tag: ClassVar[int] = 5
    peer: PeerId
    name: str


@record
class ReportStep:
    """A train step is finished: append its line to metrics.jsonl, keys in this order."""

    tag: ClassVar[int] = 6
    metrics: dict[str, object] = field(hash=False)


@record
class ReportEvaluation:
    """An evaluation is complete: append its line to evaluations.jsonl."""

    tag: ClassVar[int] = 11
    metrics: dict[str, object] = field(hash=False)


@record
class KeepSamples:
    """Copy the responses of these groups of a finished step for people to read, before their payload goes.

    Held-out groups are filed under the step that starts from the weights that answered them.
    """

    tag: ClassVar[int] = 12
    step: int
    groups: tuple[KeptGroup, ...]


@record
class Warn:
    """Show this text to the operator, once."""

    tag: ClassVar[int] = 7
    text: str


@record
class Progress:
    """Progress of the start, before the first train step; `fraction` is between 0 and 1."""

    tag: ClassVar[int] = 8
    fraction: float
    text: str


@record
class Finish:
    """The run is over. The host closes workers and writes the summary."""

    tag: ClassVar[int] = 9
    is_success: bool
    reason: str  # the first cause, in one paragraph


Command = (
    Send
    | Spawn
    | ReadPrompts
    | ReadHeldOut
    | DropPayload
    | Forget
    | ReportStep
    | ReportEvaluation
    | KeepSamples
    | Warn
    | Progress
    | Finish
)
