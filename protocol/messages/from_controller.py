"""What the controller says to workers."""

from typing import ClassVar, NamedTuple

from protocol.ids import TrajectoryId
from protocol.messages.device import Release, Take
from protocol.messages.from_workers import Beat
from protocol.messages.pieces import (
    ControllerMessage,
    Count,
    Ending,
    Endpoint,
    Many,
    Name,
    Party,
    Piece,
    Place,
    Real,
    Seconds,
    Segments,
    Settings,
    Text,
    Version,
    prompt_pieces,
    response_pieces,
)
from protocol.messages.record import record


@record
class Welcome(ControllerMessage):
    """Answer to Attach: the rhythm of beats and the settings of the run.

    The settings are the JSON of protocol.settings.WorkerSettings.
    """

    tag: ClassVar[int] = 32
    heard_by: ClassVar[tuple[Party, ...]] = ("link",)
    beat_s: Real
    lease_s: Real
    settings: Settings
    weights_key: Text = ""  # JSON of protocol.wire.security.ServerKey; "" without keys, and for other roles
    name: Text = ""  # the worker's name here, if another worker has claimed the one that it gave


@record
class Encode(ControllerMessage):
    """Turn prompts into token ids. One frame per group: its row."""

    tag: ClassVar[int] = 33
    heard_by: ClassVar[tuple[Party, ...]] = ("reward",)
    groups: Many[Count]

    def outgoing_payload(self) -> list[list[Piece]]:
        return [[Piece("row", group)] for group in self.groups]


@record
class Route(ControllerMessage):
    """Generate one trajectory, or go on with it. Frame 0: prompt tokens; frame 1: response tokens so far.

    For a turn of an agent, frame 0 is all that precedes the turn, and frame 1 the turn so far.
    """

    tag: ClassVar[int] = 34
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    group: Count
    member: Count
    attempt: Count
    seed: Count  # sampling noise is a function of (seed, response position), so a resumed response keeps it
    max_new_tokens: Count  # what is left of the budget
    segments: Segments
    is_evaluation: bool = False  # sampled by WorkerSettings.evaluation_sampling
    begins: Count = 0  # index of the segment where the turn begins; 0: the response is all segments

    def outgoing_payload(self) -> list[list[Piece]]:
        id = TrajectoryId(self.group, self.member)
        before = response_pieces("tokens", id, self.segments[: self.begins])
        turn = response_pieces("tokens", id, self.segments[self.begins :])
        return [prompt_pieces(self.group, self.segments) + before, turn]


@record
class Interrupt(ControllerMessage):
    """Stop these attempts and report what they have: each ends with ending "interrupt"."""

    tag: ClassVar[int] = 35
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    attempts: Many[tuple[Count, Count, Count]]  # (group, member, attempt)


@record
class Abort(ControllerMessage):
    """Drop these attempts for good; the worker reports nothing more of them."""

    tag: ClassVar[int] = 36
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    attempts: Many[tuple[Count, Count, Count]]


@record
class Pull(ControllerMessage):
    """Load exactly this version.

    In-flight work was interrupted before, or keeps its KV. A Route sent after it runs on the new version.
    """

    tag: ClassVar[int] = 37
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    policy_version: Version
    location: Place
    digest: Name
    sources: Many[Endpoint] = ()  # where an instance on another host gets it, nearest first


class ScoreItem(NamedTuple):
    """One member to score."""

    member: Count
    ending: Ending
    segments: Segments
    talk: Many[tuple[Count, Count]] = ()  # one (episode, trial) whose messages are kept, or none


@record
class Score(ControllerMessage):
    """Score a group.

    Frame 0: its row; frame 1: prompt tokens; then one frame of response tokens per member; then one of
    messages for each that has them.
    Trajectories of an agent have no prompt: frame 1 is empty, and their frames have given and sampled tokens
    alike, as `ScoreItem.segments` says.
    """

    tag: ClassVar[int] = 38
    heard_by: ClassVar[tuple[Party, ...]] = ("reward",)
    group: Count
    attempt: Count
    items: Many[ScoreItem]
    is_evaluation: bool = False  # by WorkerSettings.evaluation_function

    def outgoing_payload(self) -> list[list[Piece]]:
        frames = [
            [Piece("row", self.group)],
            prompt_pieces(self.group, self.items[0].segments if self.items else ()),
        ]
        for item in self.items:
            frames.append(response_pieces("tokens", TrajectoryId(self.group, item.member), item.segments))
        return frames + [[Piece("talk", self.group, *key)] for item in self.items for key in item.talk]


class TrainItem(NamedTuple):
    """One trajectory of a batch; siblings stand together."""

    group: Count
    member: Count
    prompt_tokens: Count
    reward: Real  # for people, in the story of the group; no loss reads it
    outcome: Real  # its advantage in its group, or its reward where the trainer makes the advantages
    ending: Ending
    segments: Segments  # their policy versions are the per-token versions, as runs
    episode: Count = 0  # its episode in the group; batches and means count episodes
    outcomes: Many[Real] = ()  # one for each segment, where they differ (0 for given ones); else `outcome`

    @property
    def response_tokens(self) -> int:
        """The number of tokens after the prompt, given ones included."""
        return sum(segment.count for segment in self.segments)

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled: only these are trained."""
        return sum(segment.count for segment in self.segments if not segment.is_given)


def train_pieces(items: tuple[TrainItem, ...], *, is_cut: bool) -> list[list[Piece]]:
    """The frames that trajectories are trained from.

    Prompt tokens, once per *trajectory*, in the order of items; response tokens; rollout logprobs. All
    concatenated without padding. Where sampling cut: codes of the kept sets, concatenated, and their words, a
    frame per trajectory.

    Given tokens are among the response tokens, and have no logprob.
    """
    prompts: list[Piece] = []
    tokens: list[Piece] = []
    logprobs: list[Piece] = []
    for item in items:
        id = TrajectoryId(item.group, item.member)
        prompts += prompt_pieces(item.group, item.segments)
        tokens += response_pieces("tokens", id, item.segments)
        logprobs += response_pieces("logprobs", id, item.segments)
    if not is_cut:
        return [prompts, tokens, logprobs]
    placed = [(TrajectoryId(item.group, item.member), item.segments) for item in items]
    codes = [piece for id, segments in placed for piece in response_pieces("kept_codes", id, segments)]
    words = [response_pieces("kept_words", id, segments) for id, segments in placed]
    return [prompts, tokens, logprobs, codes, *words]


@record
class Train(ControllerMessage):
    """One batch for the version `train_version`.

    Items that were sent ahead come first, in the order of sending, then the others, the oldest group first.

    Frames: `train_pieces` of the items that were not sent ahead.
    """

    tag: ClassVar[int] = 39
    heard_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    train_version: Version
    items: Many[TrainItem]
    is_published: bool = False  # a trainer that was lost has made and published this version already
    ahead: Count = 0  # items that TrainAhead messages brought, with their payload; they come first
    is_cut: bool = False  # sampling cut, so the frames have kept sets
    samples: Many[Count] = ()  # groups of it that people will read: see TrainStepFinished.corrected

    @property
    def rest(self) -> tuple[TrainItem, ...]:
        """The items that were not sent ahead."""
        return self.items[self.ahead :]

    def outgoing_payload(self) -> list[list[Piece]]:
        return train_pieces(self.rest, is_cut=self.is_cut)


@record
class SaveCheckpoint(ControllerMessage):
    """Save the trainer as it stands at `policy_version`, before the next batch."""

    tag: ClassVar[int] = 40
    heard_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    policy_version: Version


@record
class Retire(ControllerMessage):
    """Free the storage of this version: no worker holds or needs it any more."""

    tag: ClassVar[int] = 41
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")
    policy_version: Version


@record
class Close(ControllerMessage):
    """Tell the worker to leave, and why. After a fault it must not attach again."""

    tag: ClassVar[int] = 42
    heard_by: ClassVar[tuple[Party, ...]] = ("link",)
    reason: Text
    is_fault: bool


@record
class Reattach(ControllerMessage):
    """Tell a worker that this controller does not know it (any more); it may attach as a new one.

    The controller was started again, or the worker was silent for longer than its lease.
    """

    tag: ClassVar[int] = 43
    heard_by: ClassVar[tuple[Party, ...]] = ("link",)


@record
class Serve(ControllerMessage):
    """Have this worker serve its policy versions to other hosts, and say at which endpoint (Serving)."""

    tag: ClassVar[int] = 44
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")


@record
class ModelFiles(ControllerMessage):
    """Answer to FetchModel. One frame per file: its content. No files: the controller has none either."""

    tag: ClassVar[int] = 45
    heard_by: ClassVar[tuple[Party, ...]] = ("host",)
    names: Many[Name]
    digest: Name  # of protocol.model_files.digest_of

    def outgoing_payload(self) -> list[list[Piece]]:
        return [[] for _ in self.names]  # read from disk, not from the store


@record
class Drain(ControllerMessage):
    """Hand back the work in progress, detach and end."""

    tag: ClassVar[int] = 46
    heard_by: ClassVar[tuple[Party, ...]] = ("link",)


@record
class Keep(ControllerMessage):
    """Answer to Holding: go on with these attempts, report each from this token on, and drop the others."""

    tag: ClassVar[int] = 47
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    attempts: Many[tuple[Count, Count, Count, Count]]  # (group, member, attempt, first token)


@record
class Report(ControllerMessage):
    """Report unfinished responses and load this often from now on (`rollout.progress_s: auto`)."""

    tag: ClassVar[int] = 52
    heard_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    progress_s: Seconds
    status_s: Seconds


@record
class TrainAhead(ControllerMessage):
    """Groups that are sure to be in the batch of `train_version`, which is not complete yet.

    The trainer computes their gradients, and keeps them for their Train. Frames: `train_pieces` of the items.
    """

    tag: ClassVar[int] = 48
    heard_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    train_version: Version
    items: Many[TrainItem]
    is_cut: bool = False  # as in Train

    @property
    def rest(self) -> tuple[TrainItem, ...]:
        """All items, as `Train.rest`."""
        return self.items

    def outgoing_payload(self) -> list[list[Piece]]:
        return train_pieces(self.items, is_cut=self.is_cut)


ToAnyRole = Beat | Welcome | Close | Reattach | ModelFiles | Drain
ToRollout = Route | Interrupt | Abort | Pull | Retire | Serve | Keep | Report | Release
ToReward = Encode | Score
ToTrainer = Train | TrainAhead | SaveCheckpoint | Retire | Serve | Release | Take
