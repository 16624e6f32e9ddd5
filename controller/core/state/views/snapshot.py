"""Frozen pictures of the whole run, for people, tests and metrics."""

from dataclasses import dataclass, fields
from typing import NamedTuple


class Alarm(NamedTuple):
    """Something that a person should look at."""

    name: str
    owner: str  # the role, or section of the configuration, that it is about
    evidence: str  # one clause, with the values
    remedy: str

    def in_words(self) -> str:
        """For people, in one line."""
        return f"{self.name} ({self.owner}): {self.evidence}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One attached worker."""

    name: str
    role: str
    ready: bool
    policy_version: int  # -1 where it has no meaning
    running: int  # trajectories, or groups being scored
    resident_tokens: int
    silent_s: float  # seconds since it was last heard
    working_on: str  # its oldest unanswered command, in words; "" if none
    serves_at: str = ""  # endpoint at which it relays policy versions to other hosts; "" if it does not
    due_s: float | None = None  # seconds until the core acts on what it owes; None if it owes nothing
    then: str = ""  # what the core will do
    resident_mb: int = 0  # memory of its process and all below it; 0: not reported yet
    device: str = ""  # name of its device; "" until reported
    device_mb: int = 0  # memory in use on the device, by all processes
    device_total_mb: int = 0  # memory of the device; 0 without one


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group that has begun."""

    id: int
    state: str
    policy_version: int
    response_tokens: int
    waits_for: str


@dataclass(frozen=True, slots=True)
class BufferSnapshot:
    """The groups of one batch: those that wait for the trainer, and those that are awaited."""

    train_version: int  # version that the batch will update
    state: str  # READY, READY_WITH_CAPACITY, STUCK or PENDING, as in the StaleFlow paper
    occupied: int  # scored groups that it would take now
    reserved: int  # groups in generation or scoring with this deadline
    free: int  # groups that may start and be due by this batch; -1: unlimited


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """Where every generated token went: generated is the sum of the others."""

    generated: int
    trained: int
    aborted: int  # of aborted and withdrawn groups, spare responses, and turns whose episode has ended
    filtered: int  # of filtered groups, of masked episodes, and of what is sampled to be left untrained
    lost: int  # reported too late (aborted once the run ends), or of episodes that began again
    evaluated: int  # of finished held-out prompts
    in_flight: int


TOKENS = tuple(field.name for field in fields(TokenLedger))


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The run now."""

    now_s: float
    train_version: int  # version that the next batch will update
    steps: int  # train steps finished
    published_version: int  # newest visible version; -1 before the first
    due_counts: dict[int, int]  # unconsumed groups by deadline; {} where the ledger does not keep the bound
    buffers: tuple[BufferSnapshot, ...]  # of the batches in the window, the next one first
    groups: dict[str, int]  # groups by state
    queued: int  # trajectories of started groups that wait for an instance
    waiting_for: str  # what the next train step waits for, in words
    evaluating: str  # the evaluation in progress, in words; "" if none
    oldest_group: GroupSnapshot | None
    tokens: TokenLedger
    workers: tuple[WorkerSnapshot, ...]
    paused: str = ""  # who has paused the run, and why; "" if it is not paused
    idle_because: str = ""  # why nothing is generated, scored or trained now, in a sentence; "" if it is
    alarms: tuple[Alarm, ...] = ()  # of workers that keep failing
