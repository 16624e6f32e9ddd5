"""Frozen pictures of the whole run, for people, tests and metrics."""

from dataclasses import dataclass
from typing import NamedTuple


class Alarm(NamedTuple):
    """Something that a person should look at."""

    name: str
    owner: str  # who it is about: a role, or a section of the configuration
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
    silent_s: float  # since it was last heard
    working_on: str  # the oldest command that it has not answered, in words; "" if none
    serves_at: str = ""  # endpoint at which it hands policy versions to other hosts; "" if it does not
    due_s: float | None = None  # until something is done about what it owes; None if it owes nothing
    then: str = ""  # what that is
    resident_mb: int = 0  # of its process and all below it; 0: not said yet
    device: str = ""  # that it works on; "" until it says so
    device_mb: int = 0  # in use there, whoever uses it
    device_total_mb: int = 0  # that the device has; 0 without one


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group that was begun."""

    id: int
    state: str
    policy_version: int
    response_tokens: int
    waits_for: str


@dataclass(frozen=True, slots=True)
class BufferSnapshot:
    """The groups of one batch: what waits in it for the trainer, and what keeps it."""

    train_version: int  # version that the batch will update
    state: str  # READY, READY_WITH_CAPACITY, STUCK or PENDING, as in the StaleFlow paper
    occupied: int  # scored groups that it would take now
    reserved: int  # groups that are generated or scored and due by it, not by the one before
    free: int  # groups that may start and be due by it; -1: any number


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """Where every generated token went: generated is the sum of the others."""

    generated: int
    trained: int
    aborted: int  # of aborted and withdrawn groups, spare responses, turns that nobody awaits any more
    filtered: int  # of groups without signal, and of episodes that count for nothing
    lost: int  # reported too late, or by an episode that began anew; once the run ends the former are aborted
    evaluated: int  # of held-out prompts that are done
    in_flight: int


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The run now."""

    now_s: float
    train_version: int  # version that the next batch will update
    steps: int  # train steps finished
    published_version: int  # newest visible version; -1 before the first
    due_counts: dict[int, int]  # unconsumed groups by deadline
    buffers: tuple[BufferSnapshot, ...]  # of the batches in the window, the next one first
    groups: dict[str, int]  # groups by state
    queued: int  # trajectories of started groups that wait for an instance
    waiting_for: str  # what the next train step waits for, in words
    evaluating: str  # the evaluation that goes on, in words; "" if none does
    oldest_group: GroupSnapshot | None
    tokens: TokenLedger
    workers: tuple[WorkerSnapshot, ...]
    paused: str = ""  # who has paused the run, and why; "" if nobody has
    idle_because: str = ""  # why nothing is generated, scored or trained now, in a sentence; "": something is
    alarms: tuple[Alarm, ...] = ()  # of workers that keep failing
