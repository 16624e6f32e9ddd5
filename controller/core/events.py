"""What can happen to the core. Together with their times, events are the whole history of a run.

Invariant: an event is plain data that the journal writes before the core sees it, under its tag; a tag is
never used again.
"""

from typing import ClassVar

from protocol.ids import PeerId
from protocol.messages import Message, Role
from protocol.messages.record import record


@record
class Started:
    """The run begins: time to ask for workers and prompts."""

    tag: ClassVar[int] = 1


@record
class Restarted:
    """Another controller process goes on with the run.

    An epoch begins, and no worker of the last one is left.
    """

    tag: ClassVar[int] = 8
    config: str  # JSON of the configuration that counts from now on
    run_dir: str
    import_paths: tuple[str, ...]


@record
class Received:
    """A worker's message, new and in order. Its frames are already in the payload store."""

    tag: ClassVar[int] = 2
    peer: PeerId
    message: Message


@record
class PeerFaulted:
    """A peer broke the protocol, or its queue overflowed; it is to be closed."""

    tag: ClassVar[int] = 3
    peer: PeerId
    reason: str


@record
class WorkerExited:
    """A local worker process ended (the controller started it)."""

    tag: ClassVar[int] = 4
    name: str
    role: Role
    exit_code: int  # negative: the signal that killed it
    last_words: str  # tail of its log, for the error text


@record
class PromptsRead:
    """Rows of the next prompts are in the store: groups first_group .. first_group + count - 1."""

    tag: ClassVar[int] = 5
    first_group: int
    count: int
    is_end: bool  # no more will come
    sources: tuple[int, ...] = ()  # number of the source of each; () if there is only one
    prompts: tuple[int, ...] = ()  # identity of each: equal rows have equal ones; () if they have none


@record
class HeldOutRead:
    """Rows of held-out prompts are in the store: groups first_group, first_group + 1, ... one per source."""

    tag: ClassVar[int] = 9
    first_group: int
    sources: tuple[str, ...]  # the data source of each prompt
    digest: str  # of all rows


@record
class StopRequested:
    """The operator wants the run to end after what is being trained now."""

    tag: ClassVar[int] = 6
    reason: str


@record
class Tick:
    """The deadline that `Core.next_deadline` named has come."""

    tag: ClassVar[int] = 7


Event = (
    Started
    | Restarted
    | Received
    | PeerFaulted
    | WorkerExited
    | PromptsRead
    | HeldOutRead
    | StopRequested
    | Tick
)
