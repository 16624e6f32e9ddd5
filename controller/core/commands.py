"""What the core wants done. The host executes commands in order and decides nothing.

Invariant: the tag of a command stands for it in fingerprints, and is never used again.
"""

from dataclasses import field
from typing import ClassVar

from controller.core.state.kept_samples import KeptGroup
from protocol.ids import PeerId
from protocol.messages import Message, Role
from protocol.messages.record import record


@record
class Send:
    """Send a message; its frames come out of the payload store, as `message.outgoing_payload()` says."""

    tag: ClassVar[int] = 1
    peer: PeerId
    message: Message


@record
class Spawn:
    """Start a local worker process under this name, `delay_s` seconds from now."""

    tag: ClassVar[int] = 2
    name: str
    role: Role
    delay_s: float = 0.0


@record
class ReadPrompts:
    """Read this many rows more and answer with PromptsRead."""

    tag: ClassVar[int] = 3
    count: int
    sources: tuple[int, ...] = ()  # number of the source of each, in order; () if there is only one


@record
class ReadHeldOut:
    """Store the rows of all held-out prompts as groups from `first_group` on, and answer with HeldOutRead."""

    tag: ClassVar[int] = 10
    first_group: int


@record
class DropPayload:
    """Nothing will ask for the payload of these groups again."""

    tag: ClassVar[int] = 4
    groups: tuple[int, ...]


@record
class Forget:
    """The peer is gone or unwanted: free its session and socket state. Its process, if local, is killed."""

    tag: ClassVar[int] = 5
    peer: PeerId
    name: str


@record
class ReportStep:
    """One train step is done: the line for metrics.jsonl, complete and in its order."""

    tag: ClassVar[int] = 6
    metrics: dict[str, object] = field(hash=False)


@record
class ReportEvaluation:
    """An evaluation is complete: the line for evaluations.jsonl."""

    tag: ClassVar[int] = 11
    metrics: dict[str, object] = field(hash=False)


@record
class KeepSamples:
    """Keep what these groups of a finished step said, for people to read; their payload is still there.

    Held-out groups are kept with the step that begins with the weights that have answered.
    """

    tag: ClassVar[int] = 12
    step: int
    groups: tuple[KeptGroup, ...]


@record
class Warn:
    """Tell the person who watches, in words, once."""

    tag: ClassVar[int] = 7
    text: str


@record
class Progress:
    """Something that a person waits for before the first step has come nearer; `fraction` of 1."""

    tag: ClassVar[int] = 8
    fraction: float
    text: str


@record
class Finish:
    """The run is over. The host closes workers and writes the summary."""

    tag: ClassVar[int] = 9
    is_success: bool
    reason: str  # first cause, one paragraph


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
