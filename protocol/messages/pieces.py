"""The parts of messages: field types, pieces of stored payload, and the base class of all messages.

Invariant: tokens are int32, logprobs float32, both little-endian; a row is one JSON object in UTF-8.
"""

import re
import sys
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar, get_args

from msgspec import Meta

from protocol.ids import TrajectoryId
from protocol.plain_text import is_plain_line, plain

MAX_TEXT_CHARS = 65_536
MAX_METRICS = 4096  # of one train step: each is in a line of metrics.jsonl, for ever
MAX_REWARD = 1e30  # of either sign: squares and sums of such numbers are far from overflow
MAX_ARRAY = 262_144  # items of one array: a megabyte of nils would otherwise become 16 of objects
ITEM_BYTES = 4  # tokens are int32, logprobs float32


def _one_plain_line(text: str) -> str:
    if not is_plain_line(text):
        raise ValueError("expected one line without control characters")
    return text


def _made_plain(text: str) -> str:
    return plain(text)[:MAX_TEXT_CHARS]


def _endpoint(text: str) -> str:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    is_host = re.fullmatch(r"[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.%A-Za-z0-9_-]+\]", host) is not None
    is_port = re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 65_536
    if not (text.startswith("tcp://") and is_host and is_port):
        raise ValueError("expected tcp://HOST:PORT")
    return text


Count = Annotated[int, Meta(ge=0, lt=2**53)]
Version = Annotated[int, Meta(ge=0, lt=2**31)]
GIVEN = -1
"""In place of the policy version, of tokens that an environment has given: nobody sampled them."""
VersionOrGiven = Annotated[int, Meta(ge=GIVEN, lt=2**31)]
Real = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Finite: neither inf nor nan is within these bounds."""
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Name = Annotated[str, Meta(min_length=1, max_length=200, extra={"finish": _one_plain_line})]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS, extra={"finish": _made_plain})]
Place = Annotated[str, Meta(max_length=4096, extra={"finish": _one_plain_line})]
"""A path, as it is on the host that says it."""
Endpoint = Annotated[str, Meta(max_length=200, extra={"finish": _endpoint})]
Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], Meta(max_length=MAX_ARRAY)]
"""Any number of them, up to what a header may hold."""
Settings = Annotated[str, Meta(max_length=1_048_576)]
Role = Literal["rollout", "reward", "trainer", "agent"]
ROLES: tuple[Role, ...] = get_args(Role)
Party = Role | Literal["stranger", "controller", "core", "shell", "server", "link", "host"]
"""Who says or hears a message. A stranger is a connection that has not attached; core, shell and the wire's
server are the controller's, link and host those of a worker process of any role."""
Action = Literal["pause", "unpause", "checkpoint", "abort", "evaluate", "set"]
"""What an operator may ask of a run."""
Ending = Literal["", "stop", "length", "interrupt"]
"""Why a delta is the last of its attempt; "" while the trajectory goes on."""
ForkCause = Literal["", "edited", "template", "compacted", "branched"]
"""Why an episode has another conversation, "" if it is none: its history was edited, the template writes it
otherwise, turns of it were replaced, or none of that: a sub-agent, or another answer to the same."""
TurnEnding = Literal["stop", "length"]
"""Why a turn of an agent is over: the policy has ended it, or its limit has."""
EpisodeEnding = Literal["stop", "turns", "tokens", "context", "length"]
"""Why an episode is over: its function returned (`stop`), after `agent.max_turns`, `agent.max_tokens`, a full
context, or a turn that was cut at `agent.max_turn_tokens`."""
Earned = Literal["", "turns", "end", "scored"]
"""Where an episode has earned its reward. `turns`: it is the sum of the rewards of its turns. `end`: at its
end, beside those of its turns. `scored`: at its end, and the reward function says how much; an older release
said `end` for it. "": a still older one, which said nothing and took all for earned at the end.
"""


ResponseKind = Literal["tokens", "logprobs", "kept_codes", "kept_words"]
BytesKind = Literal["state", "talk"]
"""What an episode was saved as, and what was said in it as messages (JSON): by episode and trial, whole."""
BYTES_KINDS: tuple[BytesKind, ...] = get_args(BytesKind)
PieceKind = Literal["row", "prompt"] | BytesKind | ResponseKind
CorrectionKind = Literal["trained_logprobs", "token_weights"]
"""What a trainer has found of sampled tokens: kept with samples, and in no payload."""


class Piece(NamedTuple):
    """A piece of stored payload: the first `count` elements kept under a key (-1: all of them).

    Of `kept_words`: the words of the first `count` tokens.
    """

    kind: PieceKind
    group: int
    member: int = 0
    attempt: int = 0
    count: int = -1  # pyright: ignore[reportIncompatibleMethodOverride]  # no tuple method


class Segment(NamedTuple):
    """Consecutive tokens of one attempt: sampled under one policy version, or GIVEN by an environment.

    A given segment has its own attempt number, and neither version nor logprobs.
    """

    attempt: Count
    policy_version: VersionOrGiven
    count: Count  # pyright: ignore[reportIncompatibleMethodOverride]  # no tuple method

    @property
    def is_given(self) -> bool:
        """Whether an environment gave the tokens: context that is not trained."""
        return self.policy_version == GIVEN


Segments = Many[Segment]


def response_pieces(kind: ResponseKind, id: TrajectoryId, segments: Segments) -> list[Piece]:
    """The stored pieces of a response, in order: of each attempt, as many elements as the core accepted.

    A late delta of an abandoned attempt lies after the accepted count, so it is never read. Given segments
    have tokens and no logprobs.
    """
    counts: dict[int, int] = {}
    for attempt, policy_version, count in segments:
        if policy_version != GIVEN or kind == "tokens":
            counts[attempt] = counts.get(attempt, 0) + count
    return [Piece(kind, id.group, id.member, attempt, count) for attempt, count in counts.items()]


def prompt_pieces(group: int, segments: Segments) -> list[Piece]:
    """The prompt of a group; nothing where the trajectory is an agent's, which begins with given tokens."""
    return [] if segments and segments[0].is_given else [Piece("prompt", group)]


class Frame(NamedTuple):
    """A frame that comes with a worker's message: so many elements of one kind, or bytes."""

    kind: ResponseKind | CorrectionKind | BytesKind
    size: int

    @property
    def size_bytes(self) -> int:
        """The size that the frame must have."""
        return self.size if self.kind in BYTES_KINDS else ITEM_BYTES * self.size


class SavedTrajectory(NamedTuple):
    """A trajectory of an episode as far as it had come when a state of its environment was saved."""

    asks: Count
    length: Count  # in tokens, given and sampled
    attempt: Count  # newest
    is_trained: bool


class Stretch(NamedTuple):
    """Elements in a frame, and the place within a group where the receiver keeps them."""

    kind: PieceKind | CorrectionKind
    member: int
    attempt: int
    start: int  # number of elements of this attempt before these
    data: bytes


class Message:
    """Base of all messages.

    The docstring of the package says what a class has to define, and what follows from it.
    """

    __slots__ = ()
    tag: ClassVar[int]
    said_by: ClassVar[tuple[Party, ...]]
    heard_by: ClassVar[tuple[Party, ...]]
    is_last_word: ClassVar[bool] = False
    """Whether its payload replaces what is kept; otherwise what came first stays."""

    def outgoing_payload(self) -> list[list[Piece]]:
        """For each frame, the pieces that make it up. Empty: the message is its header."""
        return []

    def incoming_frames(self) -> list[Frame]:
        """The frames that the message must have, in order; tokens and logprobs are checked as such."""
        return []

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        """The payload to keep, by group: `frames` agree with `incoming_frames()`."""
        del frames
        return iter(())


class WorkerMessage(Message):
    """Base of the messages of workers."""

    __slots__ = ()
    heard_by: ClassVar[tuple[Party, ...]] = ("core",)


class ControllerMessage(Message):
    """Base of the messages of the controller."""

    __slots__ = ()
    said_by: ClassVar[tuple[Party, ...]] = ("controller",)
