"""The evaluation that goes on: its prompts, what each came to, who may answer them, and the line at its end.

Invariants: a held-out prompt is a group whose id is at or above FIRST_EVALUATION_GROUP, which never enters
the ledger and leaves the system when it is scored or has failed, so that an evaluation always comes to an
end; one evaluation goes on at a time, and at most one waits; a version is evaluated at most once.
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

MAX_REASON_CHARS = 500  # of a failure that a line tells


@dataclass(slots=True)
class EvaluationRound:
    """One evaluation."""

    policy_version: int
    first_group: int
    began_s: float
    samples: int
    is_exact: bool
    sources: tuple[str, ...] | None = None  # of the prompts, in order; None until they are read
    digest: str = ""  # of their rows
    unplaced: int = 0  # prompts that are not encoded yet
    answered: dict[int, Answered] = field(default_factory=dict)  # by the number of the prompt
    failed: dict[int, str] = field(default_factory=dict)
    worst: WorstAnswers = field(default_factory=WorstAnswers)  # what people may read of it

    @property
    def open(self) -> int:
        """Prompts that are neither answered nor failed."""
        return len(self.sources or ()) - len(self.answered) - len(self.failed)


class HeldOutEpisodes:
    """The held-out prompts of an agent, each of which begins its episodes at agent workers."""

    def __init__(self, state: RunState, rounds: "EvaluationRounds") -> None:
        self.state, self.rounds = state, rounds
        self.rows: deque[int] = deque()
        """Groups whose episodes have not begun, in the order of prompts."""

    def next(self) -> Group | None:
        """The next prompt, none of whose episodes has begun."""
        while self.rows and self.rows[0] not in self.state.groups:
            self.rows.popleft()  # it was given up
        return self.state.groups[self.rows[0]] if self.rows else None

    @property
    def is_below_share(self) -> bool:
        """Whether it has fewer episodes at agent workers than it may have while training wants more."""
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
        """The first of its episodes has asked: it has no place to wait for, so it starts."""
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
        self.pending: int | None = None  # version that waits for the round to end
        self.asked = -1  # newest version that was due
        self.is_stopped = (
            False  # the run is to end without it: the operator wants that, or nobody can answer it
        )
        self.episodes = HeldOutEpisodes(state, self)
        self._next_group = FIRST_EVALUATION_GROUP

    @property
    def is_on(self) -> bool:
        """Whether anything is evaluated at all."""
        return self.state.config.evaluation.every_steps > 0

    @property
    def holds_up_the_end(self) -> bool:
        """Whether a run that has made its steps goes on for the sake of an evaluation."""
        if self.is_stopped or not self.is_on:
            return False
        return self.round is not None or self.pending is not None or self.is_final_due

    @property
    def is_final_due(self) -> bool:
        """Whether the newest version that the run will make has yet to be evaluated."""
        return self.is_on and self.state.config.evaluation.at_end and self.asked < self.state.steps

    @property
    def unencoded(self) -> int:
        """Held-out prompts that reward workers have yet to make tokens of."""
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
        """The weights that must answer the round; None if nothing is to be placed.

        These very ones if the round is exact, else these or newer ones.
        """
        versions = self.state.versions
        if self.round is None or not self.is_placing:
            return None
        return versions.get(self.round.policy_version) if self.round.is_exact else versions.newest

    @property
    def is_lost(self) -> bool:
        """Whether an exact round waits for weights that will never be there again.

        The trainer that is there began behind them, or has shown newer ones.
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
        """What goes on, for people."""
        if self.round is None:
            return ""
        if self.round.sources is None:
            return f"version {self.round.policy_version}: reading prompts"
        count = len(self.round.sources)
        return f"version {self.round.policy_version}: {count - self.round.open} of {count} prompts"

    # -- instances --------------------------------------------------------------------------------------

    def may_run(self, instance: Instance) -> bool:
        """Whether the round may be answered with what the instance samples from."""
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
        """Rows are in the store: returns the groups that they are given, which are to be encoded."""
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
        """The prompt can be answered from now on: its responses wait for an instance."""
        assert self.round is not None
        self.round.unplaced -= 1
        group.start(self.round.policy_version, size=self.round.samples)
        for member in group.members:
            self.state.requeue(member)

    def number(self, group: int) -> int:
        """The number of a group's prompt, which is the same in all evaluations of the same data."""
        assert self.round is not None
        return group - self.round.first_group

    # -- results ----------------------------------------------------------------------------------------

    def on_refused(self, group: Group, reason: str, worker: str) -> None:
        """A prompt cannot be encoded."""
        del worker
        self.on_failed(group, reason)

    def on_scored(self, group: Group) -> None:
        """A prompt is done."""
        assert self.round is not None
        self.round.answered[self.number(group.id)] = Answered.of(group)
        unneeded = self.round.worst.take(group, self.state.config.evaluation.threshold)
        recall.remove(self.state, group, "evaluated", unneeded=unneeded)
        self._finish_if_complete()

    def on_call_failed(self, group: Group, told: str) -> bool:
        """The reward function failed on a prompt, which its report will name if it goes on failing."""
        del group, told
        return True

    def on_failed(self, group: Group, reason: str) -> None:
        """A prompt cannot be answered or scored: it is left out, by name."""
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
        """Every open prompt of the round is a group, and there is no other; none of them is in the ledger."""
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
