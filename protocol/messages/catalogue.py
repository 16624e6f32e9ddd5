"""All messages by tag, by direction and by role, collected from their classes.

Invariant: a class without a tag of its own, without speaker or hearer, or which the type of its role does not
list, cannot be imported: `TypeError` says how to mend it.
"""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TypeVar, get_args

from protocol.messages import device, from_agents, from_controller, from_workers, progress, to_agents
from protocol.messages.from_agents import FromAgent
from protocol.messages.from_controller import ToAnyRole, ToReward, ToRollout, ToTrainer
from protocol.messages.from_workers import Beat, FromReward, FromRollout, FromTrainer
from protocol.messages.pieces import ROLES, ControllerMessage, Message, Role, WorkerMessage
from protocol.messages.to_agents import ToAgent

__all__ = ["FROM_WORKER", "KINDS", "MAY_HEAR", "MAY_SAY", "PROTOCOL_VERSION", "TO_WORKER", "by_tag"]

PROTOCOL_VERSION = 20
Kind = TypeVar("Kind", bound=type)


def by_tag(kinds: Iterable[Kind]) -> dict[int, Kind]:
    """The table of classes by their tag. Raises: TypeError for one without a tag, or with another's."""
    table: dict[int, Kind] = {}
    for kind in kinds:
        tag = vars(kind).get("tag")
        if type(tag) is not int:
            raise TypeError(
                f"{kind.__name__} has no tag: give it `tag: ClassVar[int] =` a number never used."
            )
        if table.setdefault(tag, kind) is not kind:
            raise TypeError(
                f"{kind.__name__} and {table[tag].__name__} both have tag {tag}: give the newer one a number "
                "never used."
            )
    return table


def check(kinds: Iterable[type[Message]], says: Mapping[Role, object], hears: Mapping[Role, object]) -> None:
    """Compare the classes with the types of the roles. Raises: TypeError if they disagree."""
    for kind in kinds:
        name = kind.__name__
        if not getattr(kind, "said_by", ()) or not getattr(kind, "heard_by", ()):
            raise TypeError(f"{name} has nobody who says or hears it: set `said_by` and `heard_by`.")
        if ("incoming_frames" in vars(kind)) != ("kept" in vars(kind)):
            raise TypeError(f"{name} needs both `incoming_frames` and `kept`, or neither.")
        for role in ROLES:
            may_say = role in kind.said_by and "core" in kind.heard_by
            _agree(name, may_say, kind in get_args(says[role]), f"{role!r} may say it", f"From{role.title()}")
            hears_it = role in kind.heard_by
            _agree(name, hears_it, kind in get_args(hears[role]), f"{role!r} hears it", f"To{role.title()}")


def _agree(name: str, is_said: bool, is_listed: bool, what: str, union: str) -> None:
    if is_said != is_listed:
        raise TypeError(
            f"{name} {'says' if is_said else 'does not say'} that {what}, and the type {union} "
            f"{'lists it' if is_listed else 'does not list it'}: make both say the same."
        )


def _defined_in(module: ModuleType, base: type[Message]) -> tuple[type[Message], ...]:
    return tuple(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module.__name__
    )


FROM_WORKER = (
    *_defined_in(from_workers, WorkerMessage),
    *_defined_in(progress, WorkerMessage),
    *_defined_in(from_agents, WorkerMessage),
    *_defined_in(device, WorkerMessage),
)
TO_WORKER = (
    Beat,
    *_defined_in(from_controller, ControllerMessage),
    *_defined_in(to_agents, ControllerMessage),
    *_defined_in(device, ControllerMessage),
)
KINDS = by_tag(dict.fromkeys((*FROM_WORKER, *TO_WORKER)))
MAY_SAY: dict[Role, tuple[type[Message], ...]] = {
    "rollout": get_args(FromRollout),
    "reward": get_args(FromReward),
    "trainer": get_args(FromTrainer),
    "agent": get_args(FromAgent),
}
"""What an attached worker may say to the core."""
MAY_HEAR: dict[Role, tuple[type[Message], ...]] = {
    "rollout": get_args(ToRollout | ToAnyRole),
    "reward": get_args(ToReward | ToAnyRole),
    "trainer": get_args(ToTrainer | ToAnyRole),
    "agent": get_args(ToAgent | ToAnyRole),
}
"""What a worker may be told; its link or its host take what every role is told."""

check(
    KINDS.values(),
    {"rollout": FromRollout, "reward": FromReward, "trainer": FromTrainer, "agent": FromAgent},
    {"rollout": ToRollout, "reward": ToReward, "trainer": ToTrainer, "agent": ToAgent},
)
