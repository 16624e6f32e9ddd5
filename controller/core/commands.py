"""What the core wants done. The host executes commands in order and decides nothing."""

from dataclasses import dataclass, field

from protocol.ids import PeerId
from protocol.messages import Message, Role


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; its frames come out of the payload store, as `message.outgoing_payload()` says."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a local worker process under this name, `delay_s` seconds from now."""

    name: str
    role: Role
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadPrompts:
    """Read this many rows more and answer with PromptsRead."""

    count: int


@dataclass(frozen=True, slots=True)
class ReadHeldOut:
    """Store the rows of all held-out prompts as groups from `first_group` on, and answer with HeldOutRead."""

    first_group: int


@dataclass(frozen=True, slots=True)
class DropPayload:
    """Nothing will ask for the payload of these groups again."""

    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """The peer is gone or unwanted: free its session and socket state. Its process, if local, is killed."""

    peer: PeerId
    name: str


@dataclass(frozen=True, slots=True)
class ReportStep:
    """One train step is done: the line for metrics.jsonl, complete and in its order."""

    metrics: dict[str, object] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ReportEvaluation:
    """An evaluation is complete: the line for evaluations.jsonl."""

    metrics: dict[str, object] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the person who watches, in words, once."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that a person waits for before the first step has come nearer; `fraction` of 1."""

    fraction: float
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over. The host closes workers and writes the summary."""

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
    | Warn
    | Progress
    | Finish
)
