"""Events: all inputs of the core. Together with their times they are the whole history of a run.

Invariant: an event is plain data, journalled under its tag before the core sees it; a tag is never reused.
"""

from typing import ClassVar

from protocol.ids import PeerId
from protocol.messages import Message, Role
from protocol.messages.record import record

OLD_RULES, RULES = 1, 2
"""The rules of a run that an older release began, and of a new one; a run keeps its rules to its end.

| | rules 1 | rules 2 |
|---|---|---|
| seed of a response | by `random.Random` of its name | by BLAKE2b of its name, in a sixth of the time |
| a reward that is compared with no other | is divided by 1e-6 under `group_std` | is divided by 1 |
| a due checkpoint that was lost with its trainer | is left out | is made after the next step |
"""


@record
class Started:
    """The run begins: the core asks for workers and prompts."""

    tag: ClassVar[int] = 1
    rules: int = OLD_RULES  # of older releases, whose journals do not say it


@record
class Restarted:
    """Another controller process resumes the run.

    An epoch begins; no worker of the last epoch is attached any more.
    """

    tag: ClassVar[int] = 8
    config: str  # JSON of the configuration from now on
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
    """A peer broke the protocol, or its queue overflowed; the core closes it."""

    tag: ClassVar[int] = 3
    peer: PeerId
    reason: str


@record
class WorkerExited:
    """A local worker process, started by the controller, has ended."""

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
    is_end: bool  # no more prompts will come
    sources: tuple[int, ...] = ()  # the source of each prompt, by number; () if there is only one source
    prompts: tuple[int, ...] = ()  # identity of each prompt, equal for equal rows; () if they have none


@record
class HeldOutRead:
    """Rows of held-out prompts are in the store: groups first_group, first_group + 1, ... one per source."""

    tag: ClassVar[int] = 9
    first_group: int
    sources: tuple[str, ...]  # the data source of each prompt
    digest: str  # of all rows


@record
class StopRequested:
    """The operator wants the run to end once the batch in training is finished and saved."""

    tag: ClassVar[int] = 6
    reason: str


@record
class Tick:
    """The deadline that `Core.next_deadline` named has passed."""

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
