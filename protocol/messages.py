"""Every message of the wire, which is also the vocabulary of the core.

Invariants:
- A message is frozen and positional: its fields, in order, are the msgpack array that travels.
- Bulk data (tokens, logprobs, prompt rows) is never a field. A message names the frames that go with it:
  `outgoing_payload()` lists, for each frame, the stored pieces that the sender concatenates;
  `incoming_payload()` lists, for each frame, where the receiver keeps it.
- Tokens are int32, logprobs float32, both little-endian; a row is one JSON object in UTF-8.
- What people read has no control characters: a name with some is refused, a longer text made plain.
- Tags are never reused; a change of fields raises `PROTOCOL_VERSION`.

One file, though a long one: a protocol is read as a whole.
"""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from protocol.ids import TrajectoryId
from protocol.plain_text import is_plain_line, plain

PROTOCOL_VERSION = 6
MAX_TEXT_CHARS = 65_536
MAX_METRICS = 4096  # of one train step: each is in a line of metrics.jsonl, for ever
MAX_REWARD = 1e30  # of either sign: squares and sums of such numbers are far from overflow


def _one_plain_line(text: str) -> str:
    if not is_plain_line(text):
        raise ValueError("expected one line without control characters")
    return text


def _endpoint(text: str) -> str:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    is_host = re.fullmatch(r"[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.%A-Za-z0-9_-]+\]", host) is not None
    is_port = re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 65_536
    if not (text.startswith("tcp://") and is_host and is_port):
        raise ValueError("expected tcp://HOST:PORT")
    return text


Count = Annotated[int, Field(ge=0, lt=2**53)]
Version = Annotated[int, Field(ge=0, lt=2**31)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_plain_line)]
Text = Annotated[
    str, Field(max_length=MAX_TEXT_CHARS), AfterValidator(lambda text: plain(text)[:MAX_TEXT_CHARS])
]
Place = Annotated[str, Field(max_length=4096), AfterValidator(_one_plain_line)]
"""A path, as it is on the host that says it."""
Endpoint = Annotated[str, Field(max_length=200), AfterValidator(_endpoint)]
Settings = Annotated[str, Field(max_length=1_048_576)]
Role = Literal["rollout", "reward", "trainer"]
Ending = Literal["", "stop", "length", "interrupt"]
"""Why a delta is the last of its attempt; "" while the trajectory goes on."""


class Piece(NamedTuple):
    """A piece of stored payload: the first `count` elements kept under a key (-1: all of them)."""

    kind: Literal["row", "prompt", "tokens", "logprobs"]
    group: int
    member: int = 0
    attempt: int = 0
    count: int = -1


class Segment(NamedTuple):
    """Consecutive response tokens of one attempt under one policy version."""

    attempt: Count
    policy_version: Version
    count: Count


Segments = tuple[Segment, ...]


def response_pieces(kind: Literal["tokens", "logprobs"], id: TrajectoryId, segments: Segments) -> list[Piece]:
    """The stored pieces of a response, in order: of each attempt, as many elements as the core accepted.

    A late delta of an abandoned attempt lies behind the accepted count, so it is never read.
    """
    counts: dict[int, int] = {}
    for segment in segments:
        counts[segment.attempt] = counts.get(segment.attempt, 0) + segment.count
    return [Piece(kind, id.group, id.member, attempt, count) for attempt, count in counts.items()]


class Message:
    """Base of all messages; `frames` says how many buffers follow the header."""

    __slots__ = ()
    tag: ClassVar[int]

    def outgoing_payload(self) -> list[list[Piece]]:
        """For each frame, the pieces that make it up. Empty: the message is its header."""
        return []


@dataclass(frozen=True, slots=True)
class Attach(Message):
    """First word of a worker: who it is."""

    tag: ClassVar[int] = 1
    role: Role
    name: Name
    pid: Count
    host: Name


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """Sign of life from the thread that does the work; also carries the acknowledgement when nothing else
    does."""

    tag: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The worker has loaded what its role needs and says how much it can carry."""

    tag: ClassVar[int] = 3
    # what it has now. Of a rollout instance 0, which is what the model directory holds, or what it had when
    # it was cut off; whatever it says, it pulls before it samples. Of a trainer the version of the checkpoint
    # that it took up, 0 without one
    policy_version: Version
    capacity: Count  # trajectories that it can run at once, groups that it can score at once; 0: not said
    kv_tokens: Count  # tokens that its KV cache holds; 0 for roles without one


@dataclass(frozen=True, slots=True)
class Detach(Message):
    """The worker leaves on purpose; everything that it had was handed back before this message."""

    tag: ClassVar[int] = 4
    reason: Text


@dataclass(frozen=True, slots=True)
class WorkerFailed(Message):
    """The worker cannot do its job at all; one paragraph: what happened, what was expected, what to do."""

    tag: ClassVar[int] = 5
    reason: Text


@dataclass(frozen=True, slots=True)
class PromptsEncoded(Message):
    """Token ids of prompts, one int32 frame per entry of `encoded`; `refused` gives a reason for
    each other."""

    tag: ClassVar[int] = 6
    encoded: tuple[tuple[Count, Count], ...]  # (group, prompt tokens)
    refused: tuple[tuple[Count, Text], ...]  # (group, why)


@dataclass(frozen=True, slots=True)
class ExamplesEncoded(Message):
    """The same for supervised training: prompts with the responses that the data gives. One int32 frame per
    entry of `encoded`: the prompt, then the response."""

    tag: ClassVar[int] = 17
    encoded: tuple[tuple[Count, Count, Count], ...]  # (group, prompt tokens, response tokens)
    refused: tuple[tuple[Count, Text], ...]  # (group, why)


class Delta(NamedTuple):
    """New response tokens of one trajectory, all sampled by one policy version."""

    group: Count
    member: Count
    attempt: Count
    start: Count  # tokens of this attempt reported before
    count: Count
    policy_version: Version
    ending: Ending


@dataclass(frozen=True, slots=True)
class Generated(Message):
    """Progress and endings. Frame 0: tokens of all deltas in order (int32); frame 1: their logprobs
    (float32)."""

    tag: ClassVar[int] = 7
    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class GenerationFailed(Message):
    """The engine could not go on with one attempt; its tokens so far were reported by `Generated`."""

    tag: ClassVar[int] = 8
    group: Count
    member: Count
    attempt: Count
    reason: Text


@dataclass(frozen=True, slots=True)
class InstanceStatus(Message):
    """Load of one rollout instance as its engine sees it, between two engine steps.

    Counters are totals since the process started, so that a lost report loses nothing.
    """

    tag: ClassVar[int] = 9
    sequence: Count
    policy_version: Version
    running: Count  # trajectories in the decode batch
    waiting: Count  # accepted, not started
    resident_tokens: Count  # prompt and response tokens in the KV cache
    decode_steps: Count
    decode_tokens: Count
    decode_s: Seconds  # time spent in decode steps
    prefill_tokens: Count
    prefill_s: Seconds
    decode_context: Count  # tokens in the KV cache that a decode step read, summed over decode steps
    preemptions: Count  # trajectories that the engine pushed back into its queue for want of KV
    queued: tuple[tuple[Count, Count, Count], ...]  # (group, member, attempt) of those that wait


@dataclass(frozen=True, slots=True)
class Pulled(Message):
    """The instance now samples from `policy_version`; `digest` is the checksum that it computed itself."""

    tag: ClassVar[int] = 10
    policy_version: Version
    digest: Name
    pull_s: Seconds
    refused: Count = 0  # chunks that came with a wrong checksum, and were pulled again


@dataclass(frozen=True, slots=True)
class PullFailed(Message):
    """The version could not be loaded; the instance still holds the one before."""

    tag: ClassVar[int] = 11
    policy_version: Version
    reason: Text


@dataclass(frozen=True, slots=True)
class GroupScored(Message):
    """One finite reward for each member, in the order asked."""

    tag: ClassVar[int] = 12
    group: Count
    attempt: Count
    rewards: tuple[Real, ...]


@dataclass(frozen=True, slots=True)
class ScoreFailed(Message):
    """The reward raised, hung, or returned something that is not a finite number."""

    tag: ClassVar[int] = 13
    group: Count
    attempt: Count
    reason: Text  # one sentence, then the traceback if there is one
    row: Text  # the data row, as JSON, shortened


@dataclass(frozen=True, slots=True)
class TrainStepFinished(Message):
    """The optimizer has made `policy_version` out of the batch of `policy_version - 1`."""

    tag: ClassVar[int] = 14
    policy_version: Version
    train_s: Seconds
    metrics: Annotated[tuple[tuple[Name, Real], ...], Field(max_length=MAX_METRICS)]


@dataclass(frozen=True, slots=True)
class PolicyPublished(Message):
    """A version became visible: complete, checksummed, immutable until retired."""

    tag: ClassVar[int] = 15
    policy_version: Version
    location: Place  # that readers on the same host can map
    digest: Name
    size_bytes: Count
    publish_s: Seconds


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Message):
    """A complete checkpoint of `policy_version` lies at `path`."""

    tag: ClassVar[int] = 16
    policy_version: Version
    path: Place


@dataclass(frozen=True, slots=True)
class Serving(Message):
    """The worker hands its policy versions to other hosts at this endpoint."""

    tag: ClassVar[int] = 18
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class FetchModel(Message):
    """This machine has no model directory: send the small files of it. The host answers, not the core."""

    tag: ClassVar[int] = 19


@dataclass(frozen=True, slots=True)
class DrainWorker(Message):
    """First and only word of an operator, answered by Close: have this worker leave."""

    tag: ClassVar[int] = 20
    name: Name


@dataclass(frozen=True, slots=True)
class Holding(Message):
    """Before Ready, of a worker that was attached before and has gone on without a controller: what it has,
    and from which token of each attempt on it can still tell. It says nothing else of that before Keep."""

    tag: ClassVar[int] = 21
    # who it was to the controllers since the last one that answered
    formers: Annotated[tuple[Name, ...], Field(max_length=1000)]
    policy_version: Version  # that it samples from
    attempts: tuple[tuple[Count, Count, Count, Count], ...]  # (group, member, attempt, first token)


@dataclass(frozen=True, slots=True)
class TrainedAhead(Message):
    """The gradients of the newest TrainAhead are made; the weights are still those of `train_version`."""

    tag: ClassVar[int] = 22
    train_version: Version


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to Attach: the rhythm of beats and the settings of the run (JSON of
    protocol.settings.WorkerSettings)."""

    tag: ClassVar[int] = 32
    beat_s: Real
    lease_s: Real
    settings: Settings
    weights_key: Text = ""  # JSON of protocol.wire.security.ServerKey; "" where nobody else can listen
    name: Text = ""  # that the worker is called by, if another one has claimed the same


@dataclass(frozen=True, slots=True)
class Encode(Message):
    """Turn prompts into token ids. One frame per group: its row."""

    tag: ClassVar[int] = 33
    groups: tuple[Count, ...]

    def outgoing_payload(self) -> list[list[Piece]]:
        return [[Piece("row", group)] for group in self.groups]


@dataclass(frozen=True, slots=True)
class Route(Message):
    """Generate one trajectory, or go on with it. Frame 0: prompt tokens; frame 1: response tokens so far."""

    tag: ClassVar[int] = 34
    group: Count
    member: Count
    attempt: Count
    seed: Count  # noise is a function of (seed, response position), so a resumed response keeps its noise
    max_new_tokens: Count  # what is left of the budget
    segments: Segments
    is_evaluation: bool = False  # sampled by WorkerSettings.evaluation_sampling

    def outgoing_payload(self) -> list[list[Piece]]:
        id = TrajectoryId(self.group, self.member)
        return [[Piece("prompt", self.group)], response_pieces("tokens", id, self.segments)]


@dataclass(frozen=True, slots=True)
class Interrupt(Message):
    """Stop these attempts and hand back what they have: each ends with ending "interrupt"."""

    tag: ClassVar[int] = 35
    attempts: tuple[tuple[Count, Count, Count], ...]  # (group, member, attempt)


@dataclass(frozen=True, slots=True)
class Abort(Message):
    """Drop these attempts for good; nothing comes back."""

    tag: ClassVar[int] = 36
    attempts: tuple[tuple[Count, Count, Count], ...]


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Load this very version. What runs was interrupted before, or goes on with the KV that it has; a Route
    behind it runs under the new version."""

    tag: ClassVar[int] = 37
    policy_version: Version
    location: Place
    digest: Name
    sources: tuple[Endpoint, ...] = ()  # where one on another host than the trainer's gets it, nearest first


class ScoreItem(NamedTuple):
    """One member to score."""

    member: Count
    ending: Ending
    segments: Segments


@dataclass(frozen=True, slots=True)
class Score(Message):
    """Score a group. Frame 0: its row; frame 1: prompt tokens; then one frame of response tokens per
    member."""

    tag: ClassVar[int] = 38
    group: Count
    attempt: Count
    items: tuple[ScoreItem, ...]
    is_evaluation: bool = False  # by WorkerSettings.evaluation_function

    def outgoing_payload(self) -> list[list[Piece]]:
        frames = [[Piece("row", self.group)], [Piece("prompt", self.group)]]
        for item in self.items:
            frames.append(response_pieces("tokens", TrajectoryId(self.group, item.member), item.segments))
        return frames


class TrainItem(NamedTuple):
    """One trajectory of a batch; siblings stand together."""

    group: Count
    member: Count
    prompt_tokens: Count
    reward: Real
    advantage: Real
    ending: Ending
    segments: Segments  # their policy versions are the per-token versions, as runs

    @property
    def response_tokens(self) -> int:
        return sum(segment.count for segment in self.segments)


def train_pieces(items: tuple[TrainItem, ...]) -> list[list[Piece]]:
    """The frames that trajectories are trained from: prompt tokens, once per *trajectory*, in the order of
    items; response tokens; rollout logprobs. All concatenated without padding."""
    prompts: list[Piece] = []
    tokens: list[Piece] = []
    logprobs: list[Piece] = []
    for item in items:
        id = TrajectoryId(item.group, item.member)
        prompts.append(Piece("prompt", item.group))
        tokens += response_pieces("tokens", id, item.segments)
        logprobs += response_pieces("logprobs", id, item.segments)
    return [prompts, tokens, logprobs]


@dataclass(frozen=True, slots=True)
class Train(Message):
    """One batch for the version `train_version`: what was sent ahead of it, in that order, then the oldest
    group first. Frames: `train_pieces` of what was not sent ahead."""

    tag: ClassVar[int] = 39
    train_version: Version
    items: tuple[TrainItem, ...]
    is_published: bool = False  # what it makes is visible already, made by a trainer that was lost
    ahead: Count = 0  # items that TrainAhead messages have brought, with their payload; they come first

    @property
    def rest(self) -> tuple[TrainItem, ...]:
        """What was not sent ahead."""
        return self.items[self.ahead :]

    def outgoing_payload(self) -> list[list[Piece]]:
        return train_pieces(self.rest)


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Message):
    """Save the trainer as it stands at `policy_version`, before the next batch."""

    tag: ClassVar[int] = 40
    policy_version: Version


@dataclass(frozen=True, slots=True)
class Retire(Message):
    """Nobody holds or needs this version any more: free its storage."""

    tag: ClassVar[int] = 41
    policy_version: Version


@dataclass(frozen=True, slots=True)
class Close(Message):
    """Leave: `reason` says why. After a fault the worker must not attach again."""

    tag: ClassVar[int] = 42
    reason: Text
    is_fault: bool


@dataclass(frozen=True, slots=True)
class Reattach(Message):
    """This controller does not know the worker (any more): it was started again, or the worker was silent for
    longer than its lease. It may attach as a new one."""

    tag: ClassVar[int] = 43


@dataclass(frozen=True, slots=True)
class Serve(Message):
    """Other hosts need policy versions: say where this worker hands on what it has (Serving)."""

    tag: ClassVar[int] = 44


@dataclass(frozen=True, slots=True)
class ModelFiles(Message):
    """Answer to FetchModel. One frame per file: its content. No files: the controller has none either."""

    tag: ClassVar[int] = 45
    names: tuple[Name, ...]
    digest: Name  # of protocol.model_files.digest_of

    def outgoing_payload(self) -> list[list[Piece]]:
        return [[] for _ in self.names]  # read from disk, not from the store


@dataclass(frozen=True, slots=True)
class Drain(Message):
    """Hand back what is in hand, detach and end."""

    tag: ClassVar[int] = 46


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Answer to Holding: go on with these attempts, and tell of each from this token on; drop the others."""

    tag: ClassVar[int] = 47
    attempts: tuple[tuple[Count, Count, Count, Count], ...]  # (group, member, attempt, first token)


@dataclass(frozen=True, slots=True)
class TrainAhead(Message):
    """Groups that are sure to be in the batch of `train_version`, which is not complete: make their
    gradients, and keep them for its Train. Frames: `train_pieces` of the items."""

    tag: ClassVar[int] = 48
    train_version: Version
    items: tuple[TrainItem, ...]

    @property
    def rest(self) -> tuple[TrainItem, ...]:
        """All of it, as `Train.rest`."""
        return self.items

    def outgoing_payload(self) -> list[list[Piece]]:
        return train_pieces(self.items)


FROM_WORKER: tuple[type[Message], ...] = (
    Attach, Beat, Ready, Detach, WorkerFailed, PromptsEncoded, ExamplesEncoded, Generated,
    GenerationFailed, InstanceStatus, Pulled, PullFailed, GroupScored, ScoreFailed, TrainStepFinished,
    PolicyPublished, CheckpointSaved, Serving, FetchModel, DrainWorker, Holding,
    TrainedAhead,
)  # fmt: skip
TO_WORKER: tuple[type[Message], ...] = (
    Beat, Welcome, Encode, Route, Interrupt, Abort, Pull, Score, Train, SaveCheckpoint, Retire, Close,
    Reattach, Serve, ModelFiles, Drain, Keep, TrainAhead,
)  # fmt: skip
