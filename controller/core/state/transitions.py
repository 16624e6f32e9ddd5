"""State machines of groups, trajectories, workers and policy versions: their tables, and the moves.

Invariants: no other module of the controller assigns a `.state`; a move that is not in its table raises,
names the object, its state and the event, and changes nothing; an object that is GONE never moves again. This
module does not import the objects. `docs/states.md` is generated from these tables.
Source: h11, temporal sdk-core (`fsm!`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

GroupState = Literal[
    "encoding", "beginning", "waiting", "generating", "scoring", "occupied", "training", "gone"
]
TrajectoryState = Literal["queued", "running", "waiting", "finished", "dropped"]
WorkerState = Literal["attached", "ready", "absent", "gone"]
VersionState = Literal["hidden", "visible", "lost"]
GroupEnd = Literal["aborted", "filtered", "evaluated"]
GroupEvent = Literal[
    "encoded", "refused", "begun", "asked", "failed", "put_back", "started", "completed", "withdrawn",
    "given", "scored", "consumed", "trained", GroupEnd,
]  # fmt: skip
TrajectoryEvent = Literal["placed", "taken", "handed", "asked", "finished", "dropped"]
WorkerEvent = Literal["readied", "awaited", "removed"]
VersionEvent = Literal["published", "shown_again", "renewed", "lost", "superseded", "retired", "forgotten"]
GONE: Literal["gone"] = "gone"
"""The state of an object that has left the run for good."""
S = TypeVar("S", bound=str)
E = TypeVar("E", bound=str)


@dataclass(frozen=True, slots=True)
class Machine(Generic[S, E]):
    """A state machine. A state without a row is final."""

    subject: str
    begins: S
    moves: Mapping[S, Mapping[E, S]]
    """State -> event -> next state."""
    states: Mapping[S, str]
    """What each state means."""
    events: Mapping[E, str]
    """What each event is."""


GROUP: Machine[GroupState, GroupEvent] = Machine(
    subject="group",
    begins="encoding",
    moves={
        "encoding": {
            "encoded": "waiting", "begun": "beginning", "started": "generating", "refused": GONE,
            "aborted": GONE, "evaluated": GONE,
        },
        "beginning": {"asked": "waiting", "put_back": "encoding", "aborted": GONE, "evaluated": GONE},
        "waiting": {
            "started": "generating", "failed": "beginning", "put_back": "encoding", "aborted": GONE,
        },
        "generating": {
            "completed": "scoring", "withdrawn": "waiting", "given": "occupied",
            "aborted": GONE, "filtered": GONE, "evaluated": GONE,
        },
        "scoring": {"scored": "occupied", "aborted": GONE, "filtered": GONE, "evaluated": GONE},
        "occupied": {"consumed": "training", "aborted": GONE},
        "training": {"trained": GONE},
    },
    states={
        "encoding": "Its prompt is text: a reward worker has or will get it, or its episodes are to begin.",
        "beginning": "Its episodes have begun at agent workers, and not all have asked the policy.",
        "waiting": "Its prompt is tokens, or its episodes have all asked. It has no place in the ledger.",
        "generating": "It has a policy version and members. A training group has its place in the ledger.",
        "scoring": "All responses that count are finished. It waits for a reward worker, or is with one.",
        "occupied": "It has one reward and one advantage per response, and waits for its batch.",
        "training": "It is in the batch that the trainer has. Its place in the ledger is free again.",
        "gone": "It has left the run. Nobody looks at it again.",
    },
    events={
        "encoded": "A reward worker made tokens of its training prompt.",
        "refused": "A reward worker cannot use its training prompt.",
        "begun": "There was room for its episodes at agent workers.",
        "asked": "The last of its episodes asked the policy for the first time; of a held-out group the "
        "first of them.",
        "failed": "An episode of it failed before the group started, and begins again.",
        "put_back": "Its episodes were ended, to make room for those of a group that has started.",
        "started": "It got its place in the ledger; a held-out group starts when its prompt is encoded, or "
        "its first episode asks.",
        "completed": "As many responses are finished as count.",
        "withdrawn": "It held its batch back, and starts again (`staleness.stragglers: retry`).",
        "given": "Its response came from the data (supervised training).",
        "scored": "Its rewards came, and `staleness.filter` keeps it.",
        "consumed": "Its batch went to the trainer.",
        "trained": "The trainer has finished its batch.",
        "aborted": "No batch can use it any more, its episodes, encoding, generation or scoring failed too "
        "often, or an operator gave it up.",
        "filtered": "`staleness.filter` drops it, or none of its episodes counts (`agent.on_limit: mask`).",
        "evaluated": "A held-out group was scored, or was left out of its evaluation.",
    },
)  # fmt: skip

TRAJECTORY: Machine[TrajectoryState, TrajectoryEvent] = Machine(
    subject="trajectory",
    begins="queued",
    moves={
        "queued": {"placed": "running", "handed": "waiting", "finished": "finished", "dropped": "dropped"},
        "running": {"taken": "queued"},
        "waiting": {"asked": "queued", "finished": "finished", "dropped": "dropped"},
    },
    states={
        "queued": "It waits for an instance, or its group for a place in the ledger. Between `taken` and its "
        "next event it is in no queue.",
        "running": "One instance has its newest attempt.",
        "waiting": "Its environment acts, or its episode is to begin. It is at no instance.",
        "finished": "Its response is complete, and is scored and trained with its group.",
        "dropped": "Its group was complete without it.",
    },
    events={
        "placed": "It was routed to an instance, or handed to the successor of its instance.",
        "handed": "Its turn is over, or its episode is to begin (again): the environment acts.",
        "asked": "The environment has given tokens, and asks for the next turn.",
        "taken": "Its instance has ended it, handed it back, was told to abort it, or is gone.",
        "finished": "Its last attempt ended with a whole response, its group was cut short, or its episode "
        "ended.",
        "dropped": "Its group was complete without it, or it counts for nothing (`agent.on_limit: mask`).",
    },
)

WORKER: Machine[WorkerState, WorkerEvent] = Machine(
    subject="worker",
    begins="attached",
    moves={
        "attached": {"readied": "ready", "awaited": "absent", "removed": GONE},
        "ready": {"awaited": "absent", "removed": GONE},
        "absent": {"readied": "ready", "awaited": "absent", "removed": GONE},
    },
    states={
        "attached": "Its process said who it is, and loads its model or its engine. It gets no work.",
        "ready": "It gets work. A worker that was told to drain stays ready until it detaches.",
        "absent": "A rollout worker from before a restart of the controller. It keeps what it has.",
        "gone": "It left, was closed, or was silent beyond its lease. Its successor is another worker.",
    },
    events={
        "readied": "It said Ready.",
        "awaited": "The controller was started again, and the worker may come back with what it has.",
        "removed": "It detached, failed, broke the protocol, exceeded its lease, or its successor came.",
    },
)

VERSION: Machine[VersionState, VersionEvent] = Machine(
    subject="policy version",
    begins="hidden",
    moves={
        "hidden": {"published": "visible", "shown_again": "visible"},
        "visible": {"renewed": "visible", "lost": "lost", "retired": "hidden", "forgotten": "hidden"},
        "lost": {"renewed": "visible", "lost": "lost", "superseded": "visible", "forgotten": "hidden"},
    },
    states={
        "hidden": "It cannot be pulled: not made, not published yet, or freed.",
        "visible": "Instances may pull it.",
        "lost": "It is the newest, and went with its trainer. Nobody pulls it until it is published again.",
    },
    events={
        "published": "The trainer published it, and it is newer than all others.",
        "shown_again": "An evaluation needs it, and the trainer published it although there are newer ones.",
        "renewed": "The trainer published it once more, maybe elsewhere.",
        "lost": "A pull of it failed while its trainer was away or behind it.",
        "superseded": "A newer one was published.",
        "retired": "Nobody needs it: the trainer and the relays free it.",
        "forgotten": "The controller was started again; the trainer says again what is there.",
    },
)

AnyMachine = Machine[Any, Any]  # their states and events are different literals
MACHINES: tuple[AnyMachine, ...] = (GROUP, TRAJECTORY, WORKER, VERSION)
"""In the order of the page."""


class HasGroupState(Protocol):
    """A group."""

    id: int
    state: GroupState


class HasTrajectoryState(Protocol):
    """A trajectory. Its id is a property here, as nobody sets it."""

    state: TrajectoryState

    @property
    def id(self) -> object:
        """What names it."""
        ...


class HasWorkerState(Protocol):
    """A worker."""

    name: str
    state: WorkerState


def move_group(group: HasGroupState, event: GroupEvent) -> None:
    """Bring a group to its next state."""
    try:
        group.state = GROUP.moves[group.state][event]
    except KeyError:
        raise _refusal(GROUP, group.id, group.state, event) from None


def move_trajectory(member: HasTrajectoryState, event: TrajectoryEvent) -> None:
    """Bring a trajectory to its next state."""
    try:
        member.state = TRAJECTORY.moves[member.state][event]
    except KeyError:
        raise _refusal(TRAJECTORY, member.id, member.state, event) from None


def move_worker(worker: HasWorkerState, event: WorkerEvent) -> None:
    """Bring a worker to its next state."""
    try:
        worker.state = WORKER.moves[worker.state][event]
    except KeyError:
        raise _refusal(WORKER, worker.name, worker.state, event) from None


def next_of_version(policy_version: int, state: VersionState, event: VersionEvent) -> VersionState:
    """The next state of a policy version, which is a number and holds none itself."""
    try:
        return VERSION.moves[state][event]
    except KeyError:
        raise _refusal(VERSION, policy_version, state, event) from None


def _refusal(machine: AnyMachine, id: object, state: str, event: str) -> AssertionError:
    legal = ", ".join(machine.moves.get(state, ())) or "nothing"
    return AssertionError(
        f"{machine.subject} {id} is {state} and was {event}, which is no transition; expected {legal}"
    )
