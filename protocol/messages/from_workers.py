"""What workers say to the controller."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from protocol.messages.device import Released
from protocol.messages.pieces import (
    ITEM_BYTES,
    MAX_METRICS,
    ROLES,
    Action,
    Count,
    Endpoint,
    Frame,
    Many,
    Name,
    Party,
    Place,
    Real,
    Role,
    Seconds,
    Stretch,
    Text,
    Version,
    WorkerMessage,
)
from protocol.messages.progress import Generated
from protocol.messages.record import record


@record
class Attach(WorkerMessage):
    """The first message of a worker: which worker it is."""

    tag: ClassVar[int] = 1
    said_by: ClassVar[tuple[Party, ...]] = ("stranger",)
    role: Role
    name: Name
    pid: Count
    host: Name


@record
class Beat(WorkerMessage):
    """A sign of life from the thread that does the work.

    It also carries the acknowledgement when no other message does.
    """

    tag: ClassVar[int] = 2
    said_by: ClassVar[tuple[Party, ...]] = (*ROLES, "controller")
    heard_by: ClassVar[tuple[Party, ...]] = ("core", "link")


@record
class Relinked(WorkerMessage):
    """The worker has a new connection: the old one lost what was in it, so resend what is unacknowledged.

    Like a Beat it is outside the order, and carries an acknowledgement.
    """

    tag: ClassVar[int] = 56
    said_by: ClassVar[tuple[Party, ...]] = (*ROLES, "stranger")
    heard_by: ClassVar[tuple[Party, ...]] = ("server",)


@record
class Ready(WorkerMessage):
    """The worker has loaded what its role needs and says how much it can carry."""

    tag: ClassVar[int] = 3
    said_by: ClassVar[tuple[Party, ...]] = ROLES
    # what it has now. Of a rollout instance 0, which is what the model directory holds, or what it had when
    # it was cut off; whatever it says, it pulls before it samples. Of a trainer the version of the checkpoint
    # that it took up, 0 without one
    policy_version: Version
    capacity: Count  # trajectories, groups to score or episodes that it can have at once; 0: not said
    kv_tokens: Count  # tokens for which its KV cache has room; 0 for roles without one


@record
class Detach(WorkerMessage):
    """The worker leaves on purpose; everything that it had was handed back before this message."""

    tag: ClassVar[int] = 4
    said_by: ClassVar[tuple[Party, ...]] = ROLES
    reason: Text


@record
class WorkerFailed(WorkerMessage):
    """The worker cannot do its job at all; `reason`: what happened, what was expected, what to do."""

    tag: ClassVar[int] = 5
    said_by: ClassVar[tuple[Party, ...]] = ROLES
    reason: Text
    is_final: bool = False  # its next life would fail alike, until the cause is mended


@record
class PromptsEncoded(WorkerMessage):
    """Token ids of prompts, one int32 frame per entry of `encoded`.

    `refused` gives a reason for each other prompt.
    """

    tag: ClassVar[int] = 6
    said_by: ClassVar[tuple[Party, ...]] = ("reward",)
    is_last_word: ClassVar[bool] = True
    encoded: Many[tuple[Count, Count]]  # (group, prompt tokens)
    refused: Many[tuple[Count, Text]]  # (group, why)

    def incoming_frames(self) -> list[Frame]:
        return [Frame("tokens", count) for _, count in self.encoded]

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        for (group, _), frame in zip(self.encoded, frames, strict=True):
            yield group, [Stretch("prompt", 0, 0, 0, frame)]


@record
class ExamplesEncoded(WorkerMessage):
    """As PromptsEncoded, for supervised training: prompts with the responses that the data gives.

    One int32 frame per entry of `encoded`: the prompt, then the response.
    """

    tag: ClassVar[int] = 17
    said_by: ClassVar[tuple[Party, ...]] = ("reward",)
    is_last_word: ClassVar[bool] = True
    encoded: Many[tuple[Count, Count, Count]]  # (group, prompt tokens, response tokens)
    refused: Many[tuple[Count, Text]]  # (group, why)

    def incoming_frames(self) -> list[Frame]:
        return [Frame("tokens", prompt + response) for _, prompt, response in self.encoded]

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        for (group, prompt, response), frame in zip(self.encoded, frames, strict=True):
            end = ITEM_BYTES * prompt
            given = bytes(ITEM_BYTES * response)  # of probability 1
            yield (
                group,
                [
                    Stretch("prompt", 0, 0, 0, frame[:end]),
                    Stretch("tokens", 0, 1, 0, frame[end:]),
                    Stretch("logprobs", 0, 1, 0, given),
                ],
            )


@record
class GenerationFailed(WorkerMessage):
    """The engine could not go on with one attempt; its tokens so far were reported by `Generated`."""

    tag: ClassVar[int] = 8
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    group: Count
    member: Count
    attempt: Count
    reason: Text


@record
class InstanceStatus(WorkerMessage):
    """Load of one rollout instance as its engine sees it, between two engine steps.

    Counters are totals since the process started, so that a lost report loses nothing.
    """

    tag: ClassVar[int] = 9
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
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
    queued: Many[tuple[Count, Count, Count]]  # (group, member, attempt) of those that wait
    parked_tokens: Count = 0  # of ended turns, kept in the KV cache until others need the room
    reused_tokens: Count = 0  # of prompts, found in the KV cache as parts of earlier turns


@record
class Pulled(WorkerMessage):
    """The instance now samples from `policy_version`; `digest` is the checksum that it computed itself."""

    tag: ClassVar[int] = 10
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    policy_version: Version
    digest: Name
    pull_s: Seconds
    refused: Count = 0  # chunks that came with a wrong checksum, and were pulled again


@record
class PullFailed(WorkerMessage):
    """The version could not be loaded; the instance still holds the one before."""

    tag: ClassVar[int] = 11
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    policy_version: Version
    reason: Text
    is_unreachable: bool = False  # no source could be reached, or none answered


@record
class GroupScored(WorkerMessage):
    """One finite reward for each member, in the order asked; of a sum, also its parts by name."""

    tag: ClassVar[int] = 12
    said_by: ClassVar[tuple[Party, ...]] = ("reward",)
    group: Count
    attempt: Count
    rewards: Many[Real]
    parts: Many[tuple[Name, Many[Real]]] = ()


@record
class ScoreFailed(WorkerMessage):
    """The reward function raised, hung, or returned something that is not a finite number."""

    tag: ClassVar[int] = 13
    said_by: ClassVar[tuple[Party, ...]] = ("reward",)
    group: Count
    attempt: Count
    reason: Text  # one sentence, then the traceback if there is one
    row: Text  # the data row, as JSON, shortened


@record
class TrainStepFinished(WorkerMessage):
    """The optimizer has made `policy_version` out of the batch of `policy_version - 1`.

    For trajectories that people will read (`Train.samples`), it has two float32 frames with one number per
    sampled token, end to end: the logprob under the weights before the step, nan where there is none; and the
    factor by which the off-policy corrections multiplied its loss.
    """

    tag: ClassVar[int] = 14
    said_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    policy_version: Version
    train_s: Seconds
    metrics: Annotated[tuple[tuple[Name, Real], ...], Meta(max_length=MAX_METRICS)]
    corrected: Many[tuple[Count, Count, Count]] = ()  # (group, member, sampled tokens)

    def incoming_frames(self) -> list[Frame]:
        size = sum(count for _, _, count in self.corrected)
        return [Frame("trained_logprobs", size), Frame("token_weights", size)] if self.corrected else []

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        begin = 0
        for group, member, count in self.corrected:
            logprobs, weights = (frame[begin : begin + ITEM_BYTES * count] for frame in frames)
            begin += ITEM_BYTES * count
            yield (
                group,
                [
                    Stretch("trained_logprobs", member, 0, 0, logprobs),
                    Stretch("token_weights", member, 0, 0, weights),
                ],
            )


@record
class PolicyPublished(WorkerMessage):
    """A version became visible: complete, checksummed, immutable until retired."""

    tag: ClassVar[int] = 15
    said_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    policy_version: Version
    location: Place  # that readers on the same host can map
    digest: Name
    size_bytes: Count
    publish_s: Seconds


@record
class CheckpointSaved(WorkerMessage):
    """A complete checkpoint of `policy_version` lies at `path`."""

    tag: ClassVar[int] = 16
    said_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    policy_version: Version
    path: Place


@record
class Serving(WorkerMessage):
    """The worker hands its policy versions to other hosts at this endpoint."""

    tag: ClassVar[int] = 18
    said_by: ClassVar[tuple[Party, ...]] = ("rollout", "trainer")
    endpoint: Endpoint


@record
class FetchModel(WorkerMessage):
    """Ask for the small files of the model, which this machine lacks. The host answers, not the core."""

    tag: ClassVar[int] = 19
    said_by: ClassVar[tuple[Party, ...]] = ROLES
    heard_by: ClassVar[tuple[Party, ...]] = ("shell",)


@record
class MachineUse(WorkerMessage):
    """The memory that a worker takes, and that of its device; every few seconds, only for people."""

    tag: ClassVar[int] = 53
    said_by: ClassVar[tuple[Party, ...]] = ROLES
    resident_mb: Count  # of its process and all below it; pages that they share count in each
    device: Name  # as its maker calls it; "cpu" without one
    device_mb: Count = 0  # in use on that device, whoever uses it
    device_total_mb: Count = 0  # that the device has; 0 without one


@record
class DrainWorker(WorkerMessage):
    """The only message of an operator, answered by Close: have this worker leave."""

    tag: ClassVar[int] = 20
    said_by: ClassVar[tuple[Party, ...]] = ("stranger",)
    name: Name
    who: Text = ""  # "": an older release, which did not say it
    why: Text = ""


@record
class Control(WorkerMessage):
    """The only message of an operator, answered by Close: do this to the run."""

    tag: ClassVar[int] = 23
    said_by: ClassVar[tuple[Party, ...]] = ("stranger",)
    action: Action
    argument: Text  # a group's number, or `key=` and JSON; else ""
    who: Name
    why: Text


@record
class Holding(WorkerMessage):
    """The attempts of a worker that was attached before and has gone on without a controller.

    Sent before Ready. It names each attempt and the first token from which on the worker can still report it;
    the worker reports nothing else of them before Keep.
    """

    tag: ClassVar[int] = 21
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    # who it was to the controllers since the last one that answered
    formers: Annotated[tuple[Name, ...], Meta(max_length=1000)]
    policy_version: Version  # that it samples from
    attempts: Many[tuple[Count, Count, Count, Count]]  # (group, member, attempt, first token)


@record
class TrainedAhead(WorkerMessage):
    """The gradients of the newest TrainAhead are computed; the weights are still those of `train_version`."""

    tag: ClassVar[int] = 22
    said_by: ClassVar[tuple[Party, ...]] = ("trainer",)
    train_version: Version


FromAnyRole = Beat | Ready | Detach | WorkerFailed | MachineUse
FromRollout = (
    FromAnyRole | Generated | GenerationFailed | InstanceStatus | Pulled | PullFailed | Serving | Holding
    | Released
)  # fmt: skip
FromReward = FromAnyRole | PromptsEncoded | ExamplesEncoded | GroupScored | ScoreFailed
FromTrainer = (
    FromAnyRole | TrainStepFinished | TrainedAhead | PolicyPublished | CheckpointSaved | Serving | Released
)
