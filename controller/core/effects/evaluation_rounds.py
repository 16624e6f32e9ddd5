"""The evaluation in progress: its prompts, their results, the instances that may answer, and its report.

Invariants: a held-out prompt is a group whose id is at or above FIRST_EVALUATION_GROUP, which never enters
the ledger and leaves the system when it is scored or has failed, so that every evaluation ends; one
evaluation is in progress at a time, and at most one waits; a version is evaluated at most once.
"""

from collections import deque
from dataclasses import dataclass, field

from controller.core.commands import DropPayload, KeepSamples, ReadHeldOut, ReportEvaluation
from controller.core.effects import recall
from controller.core.events import HeldOutRead
from controller.core.state.evaluation_report import Answered, line
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.kept_samples import WorstAnswers
from controller.core.state.policy_versions import Published
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group
from controller.core.state.views.instances import takes_work

MAX_REASON_CHARS = 500  # of a failure in the report


@dataclass(slots=True)
class EvaluationRound:
    """One evaluation in progress."""

    policy_version: int
    first_group: int
    began_s: float
    samples: int
    is_exact: bool
    sources: tuple[str, ...] | None = None  # the source of each prompt, in order; None until they are read
    digest: str = ""  # of the rows of all prompts
    unplaced: int = 0  # prompts that are not encoded yet
    answered: dict[int, Answered] = field(default_factory=dict)  # by number of the prompt
    failed: dict[int, str] = field(default_factory=dict)
    worst: WorstAnswers = field(default_factory=WorstAnswers)  # groups that are kept as samples

    @property
    def open(self) -> int:
        """Prompts that are neither answered nor failed."""
        return len(self.sources or ()) - len(self.answered) - len(self.failed)


class HeldOutEpisodes:
    """Held-out prompts of an agent, whose episodes begin at agent workers."""

    def __init__(self, state: RunState, rounds: "EvaluationRounds") -> None:
        self.state, self.rounds = state, rounds
        self.rows: deque[int] = deque()
        """Groups whose episodes have not begun, in the order of prompts."""

    def next(self) -> Group | None:
        """The next prompt whose episodes have not begun; None if there is none."""
        while self.rows and self.rows[0] not in self.state.groups:
            self.rows.popleft()  # that group was given up
        return self.state.groups[self.rows[0]] if self.rows else None

    @property
    def is_below_share(self) -> bool:
        """Whether the evaluation has fewer episodes at agent workers than `evaluation.share` grants it."""
        if self.state.ending is not None:
            return True
        workers = list(self.state.registry.agents())
        running = sum(group >= FIRST_EVALUATION_GROUP for worker in workers for group, _ in worker.episodes)
        share = self.state.config.evaluation.share
        return running < max(1, int(share * sum(worker.capacity for worker in workers)))

    def on_begun(self, group: Group) -> None:
        """The episodes of the next prompt are to begin at agent workers."""
        assert self.rounds.round is not None
        assert self.rows[0] == group.id, f"{group.id} begins before {self.rows[0]}"
        self.rows.popleft()
        group.begin(self.rounds.round.samples)
        self.rounds.round.unplaced -= 1

    def on_asked(self, group: Group) -> None:
        """The first episode of a group has asked: the group needs no place in the ledger, so it starts."""
        found = self.rounds.round
        assert found is not None
        move_group(group, "asked")
        group.prompt_tokens = max(member.given_tokens for member in group.members)
        group.start(found.policy_version, size=found.samples)


class EvaluationRounds:
    """The evaluations of a run: the purpose of held-out groups."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.round: EvaluationRound | None = None
        self.reports: list[dict[str, object]] = []
        """All lines of evaluations.jsonl."""
        self.pending: int | None = None  # version to evaluate when the round has ended
        self.asked = -1  # newest version that was due for evaluation
        self.is_stopped = False
        """Whether the run is to end without further evaluation: by order, or since no worker could answer."""
        self.episodes = HeldOutEpisodes(state, self)
        self._next_group = FIRST_EVALUATION_GROUP

    @property
    def is_on(self) -> bool:
        """Whether the run has evaluations at all."""
        return self.state.config.evaluation.every_steps > 0

    @property
    def holds_up_the_end(self) -> bool:
        """Whether a run that has made its steps has to wait for an evaluation."""
        if self.is_stopped or not self.is_on:
            return False
        return self.round is not None or self.pending is not None or self.is_final_due

    @property
    def is_final_due(self) -> bool:
        """Whether the last version of the run has yet to be evaluated."""
        return self.is_on and self.state.config.evaluation.at_end and self.asked < self.state.steps

    @property
    def unencoded(self) -> int:
        """Held-out prompts that reward workers have yet to encode."""
        return self.round.unplaced if self.round and not self.state.config.agent.is_on else 0

    @property
    def is_placing(self) -> bool:
        """Whether responses of the round have yet to be placed on an instance."""
        if self.round is None:
            return False
        if self.state.config.agent.is_on and self.round.open:  # there may be another turn
            return True
        return self.round.sources is None or bool(self.round.unplaced or self.state.held_out_queue)

    @property
    def wanted(self) -> Published | None:
        """The version that is to answer the round; None if nothing is to be placed.

        An exact round needs exactly this version, any other round this one or a newer one.
        """
        versions = self.state.versions
        if self.round is None or not self.is_placing:
            return None
        return versions.get(self.round.policy_version) if self.round.is_exact else versions.newest

    @property
    def is_lost(self) -> bool:
        """Whether an exact round waits for a version that will never be visible again.

        The attached trainer began after that version, or has published newer ones.
        """
        versions, found = self.state.versions, self.round
        if found is None or not found.is_exact or not self.is_placing:
            return False
        return versions.get(found.policy_version) is None and found.policy_version <= versions.passed

    def held_versions(self) -> set[int]:
        """Versions that must stay visible for an evaluation."""
        held = set[int]()
        if self.round is not None and self.round.is_exact:
            held.add(self.round.policy_version)
        if self.pending is not None and self.state.config.evaluation.exact:
            held.add(self.pending)
        return held

    def in_words(self) -> str:
        """The evaluation in progress, for people; "" if there is none."""
        if self.round is None:
            return ""
        if self.round.sources is None:
            return f"version {self.round.policy_version}: reading prompts"
        count = len(self.round.sources)
        return f"version {self.round.policy_version}: {count - self.round.open} of {count} prompts"

    # -- instances --------------------------------------------------------------------------------------

    def may_run(self, instance: Instance) -> bool:
        """Whether the instance's version may answer the round."""
        found = self.round
        if found is None or not instance.is_routable:
            return False
        if found.is_exact:
            return instance.next_version == found.policy_version
        return instance.next_version >= found.policy_version and self._may_stay(instance)

    def holds(self, instance: Instance) -> bool:
        """Whether an exact evaluation needs the instance to stay at its version."""
        found = self.round
        if found is None or not found.is_exact or instance.next_version != found.policy_version:
            return False
        return bool(instance.evaluating) or self.is_placing

    def _may_stay(self, instance: Instance) -> bool:
        """Without partial rollout, an instance that ought to pull first runs empty."""
        return self.state.ending is not None or takes_work(self.state, instance)

    # -- prompts ----------------------------------------------------------------------------------------

    def begin(self, policy_version: int) -> None:
        """Evaluate this version: ask for the prompts."""
        settings = self.state.config.evaluation
        self.pending = None
        first = self._next_group
        self.round = EvaluationRound(policy_version, first, self.state.now, settings.samples, settings.exact)
        self.round.worst = WorstAnswers(self.state.config.samples.held_out)
        self.state.emit(ReadHeldOut(first))

    def on_read(self, event: HeldOutRead) -> list[int]:
        """Rows of the prompts are in the store: make their groups; returns those that are to be encoded."""
        groups = list(range(event.first_group, event.first_group + len(event.sources)))
        found = self.round
        if found is None or found.sources is not None or found.first_group != event.first_group:
            self.state.emit(DropPayload(tuple(groups)))
            return []
        self._next_group += len(groups)
        found.sources, found.digest, found.unplaced = event.sources, event.digest, len(groups)
        for number, group in enumerate(groups):
            self.state.groups[group] = Group(group, source_row=number)
        if self.state.config.agent.is_on:
            self.episodes.rows.extend(groups)
        self._finish_if_complete()
        return [] if self.state.config.agent.is_on else groups

    def on_encoded(self, group: Group) -> None:
        """A prompt is encoded: its responses wait for an instance."""
        assert self.round is not None
        self.round.unplaced -= 1
        group.start(self.round.policy_version, size=self.round.samples)
        for member in group.members:
            self.state.requeue(member)

    def number(self, group: int) -> int:
        """Number of a group's prompt, the same in all evaluations of the same data."""
        assert self.round is not None
        return group - self.round.first_group

    # -- results ----------------------------------------------------------------------------------------

    def on_refused(self, group: Group, reason: str, worker: str) -> None:
        """A prompt cannot be encoded."""
        del worker
        self.on_failed(group, reason)

    def on_scored(self, group: Group) -> None:
        """A prompt has its rewards."""
        assert self.round is not None
        self.round.answered[self.number(group.id)] = Answered.of(group)
        unneeded = self.round.worst.take(group, self.state.config.evaluation.threshold)
        recall.remove(self.state, group, "evaluated", unneeded=unneeded)
        self._finish_if_complete()

    def on_call_failed(self, group: Group, told: str) -> bool:
        """The reward function failed on a prompt: retry; the report names prompts that keep failing."""
        del group, told
        return True

    def on_failed(self, group: Group, reason: str) -> None:
        """A prompt cannot be answered or scored: leave it out; the report names it."""
        assert self.round is not None
        self.round.unplaced -= group.state == "encoding"
        self.round.failed[self.number(group.id)] = reason[:MAX_REASON_CHARS]
        self.state.accounts.counts["evaluations/failed_prompts"] += 1
        recall.remove(self.state, group, "evaluated")
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        done = self.round
        if done is None or done.open:
            return
        assert done.sources is not None
        state, self.round = self.state, None
        threshold = state.config.evaluation.threshold
        found = line(done.answered, done.failed, done.sources, samples=done.samples, threshold=threshold)
        report: dict[str, object] = {
            "policy_version": done.policy_version,
            "is_exact": done.is_exact,
            "samples": done.samples,
            "threshold": threshold,
            "began_s": round(done.began_s, 3),
            "time_s": round(state.now - done.began_s, 3),
            **found,
            "data_digest": done.digest,
        }
        state.accounts.evaluated_as(report)
        if kept := done.worst.groups:
            state.emit(KeepSamples(done.policy_version + 1, kept))
            state.emit(DropPayload(tuple([one.group for one in kept])))
        self.reports.append(report)
        state.emit(ReportEvaluation(report))
        if done.failed:
            first = report["failures"]
            assert isinstance(first, list)
            state.warn_once(
                "evaluation failures",
                f"{len(done.failed)} held-out prompts were left out of the evaluation of version "
                f"{done.policy_version}, the first: {first[0]} Others like them are only counted.",
            )

    def check(self) -> None:
        """The held-out groups are exactly the open prompts of the round, and none is in the ledger."""
        there = [group for group in self.state.groups.values() if group.is_evaluation]
        assert len(there) == (self.round.open if self.round else 0), f"{len(there)} groups of {self.round}"
        for group in there:
            assert group.id not in self.state.ledger, f"held-out group {group.id} is in the ledger"
            is_known = group.state in ("encoding", "beginning", "generating", "scoring")
            assert is_known, f"{group.id} is {group.state}"
            for member in group.members:
                is_queued = self.state.held_out_queue.holds(member)
                assert is_queued == (member.state == "queued"), f"{member.id} is {member.state}"
                assert not (self.round and self.round.is_exact) or all(
                    segment.is_given or segment.policy_version == self.round.policy_version
                    for segment in member.segments
                ), f"{member.id} is not of version {self.round.policy_version} alone"
        unplaced = self.round.unplaced if self.round else 0
        assert unplaced == sum(group.state == "encoding" for group in there)
