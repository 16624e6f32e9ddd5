"""Work of reward workers: has prompts read and encoded, and complete groups scored.

Invariants: prompts are numbered in the order in which they are read, and start in that order; a group is with
at most one reward worker at a time; a group occupies its place in the ledger only with one finite reward per
member; a reward function that never works ends the run, one that rarely fails costs a retry; a group that
may be what kills reward workers is encoded or scored alone at a worker, so that no other group is blamed;
training and held-out groups take turns at the reward workers.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from controller.core.commands import ReadPrompts
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.effects.purposes import Purposes
from controller.core.events import HeldOutRead, PromptsRead
from controller.core.state.agents.episode_rewards import is_rewarded, places_to_score, take_rewards
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.registry import TextWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import GONE, move_group
from protocol.messages import (
    Encode,
    ExamplesEncoded,
    GroupScored,
    PromptsEncoded,
    Score,
    ScoreFailed,
    ScoreItem,
)

ENCODE_AT_ONCE = 64  # prompts in one Encode; bounds the message, and the work lost with a worker


class ScoreQueue:
    """Complete groups that wait for a reward worker, by number.

    Training groups keep their order among themselves, and so do held-out groups. Where both wait they take
    turns, so that an evaluation of thousands of prompts does not keep a train step waiting for its rewards.
    """

    def __init__(self) -> None:
        self._training: deque[int] = deque()
        self._held_out: deque[int] = deque()
        self._is_held_out_next = False  # where both wait

    def __len__(self) -> int:
        return len(self._training) + len(self._held_out)

    def __iter__(self) -> Iterator[int]:
        yield from self._training
        yield from self._held_out

    def append(self, group: int) -> None:
        """Add a group behind those of its kind."""
        (self._held_out if group >= FIRST_EVALUATION_GROUP else self._training).append(group)

    def put_back(self, groups: Iterable[int]) -> None:
        """Add groups that a lost worker had, and order each kind by the numbers of its groups."""
        numbers = sorted({*self, *groups})
        self._training = deque(number for number in numbers if number < FIRST_EVALUATION_GROUP)
        self._held_out = deque(number for number in numbers if number >= FIRST_EVALUATION_GROUP)

    def first(self) -> int:
        """The group whose turn it is. Raises: IndexError if none waits."""
        return self._next()[0]

    def pop(self) -> int:
        """Take that group out. Raises: IndexError if none waits."""
        waiting = self._next()
        self._is_held_out_next = waiting is self._training
        return waiting.popleft()

    def _next(self) -> deque[int]:
        if self._training and self._held_out:
            return self._held_out if self._is_held_out_next else self._training
        return self._held_out or self._training


class Scoring:
    """Assigns work to reward workers and handles their answers."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds, purposes: Purposes) -> None:
        self.state = state
        self.evaluation, self.purposes = evaluation, purposes
        self.data_has_ended = False
        self._reading = 0  # prompts asked for and not read yet
        self._read_until = 0  # groups below this number were read
        self._next_release = 0  # groups below this number were released to dispatch, or refused
        self._to_encode: list[int] = []
        self._to_score = ScoreQueue()

    # -- prompts ----------------------------------------------------------------------------------------

    def read_ahead(self) -> None:
        """Ask for more prompts, so that enough encoded ones wait for the next batches."""
        if self.data_has_ended or self._reading:
            return
        state = self.state
        wanted = max(2 * state.config.trainer.batch_groups, ENCODE_AT_ONCE)
        unplaced = len(state.fresh) + len(state.rows)
        unplaced += len(state.windows.waiting) - state.window_groups  # a whole window waits to be ordered
        there = len(self._to_encode) + unplaced - self.evaluation.unencoded
        if there <= wanted // 2:
            there += sum(len(worker.encoding) for worker in self.state.registry.text_workers())
        if there <= wanted // 2:
            self._reading = wanted - there
            sources = state.mixture.choose(self._reading, state.steps, state.strategies.schedule)
            state.emit(ReadPrompts(self._reading, sources))

    @property
    def to_score(self) -> ScoreQueue:
        """Groups that wait for a reward worker."""
        return self._to_score

    @property
    def is_exhausted(self) -> bool:
        """Whether all prompts were read, and all usable ones are encoded."""
        return self.data_has_ended and self._next_release == self._read_until

    @property
    def reading(self) -> int:
        """Prompts asked for and not read yet."""
        return self._reading

    @property
    def read_until(self) -> int:
        """Prompts read so far: the number of the next one."""
        return self._read_until

    def restart(self) -> None:
        """The controller was restarted: ask again for the prompts that were not read yet."""
        if self._reading:
            self.state.emit(ReadPrompts(self._reading, self.state.mixture.asked))

    def on_prompts(self, event: PromptsRead) -> None:
        """Rows are in the store: make a group of each."""
        self._reading = 0
        self._read_until = event.first_group + event.count
        self.data_has_ended = event.is_end
        prompts = event.prompts or (0,) * event.count
        places = self.state.mixture.on_read(event.count, event.sources)
        for group, (prompt, (source, row)) in enumerate(zip(prompts, places, strict=True), event.first_group):
            self.state.groups[group] = Group(group, source=source, source_row=row, prompt=prompt)
            if self.state.config.agent.is_on:
                self.state.rows.append(group)  # its episodes encode it
            else:
                self._to_encode.append(group)

    def on_held_out(self, event: HeldOutRead) -> None:
        """Rows of held-out prompts are in the store."""
        self._to_encode += self.evaluation.on_read(event)

    def on_encoded(self, worker: TextWorker, message: PromptsEncoded | ExamplesEncoded) -> None:
        """Prompts are encoded, or were refused."""
        for group_id, tokens, *_ in message.encoded:
            if group_id in worker.encoding:
                group = self.state.groups[group_id]
                group.prompt_tokens = tokens
                group.reward_workers_lost = group.reward_workers_lost_alone = 0
                self.purposes.of(group).on_encoded(group)
        for group_id, reason in message.refused:
            if group_id in worker.encoding:
                group = self.state.groups[group_id]
                self.purposes.of(group).on_refused(group, reason, worker.name)
        worker.encoding.difference_update(g for g, *_ in (*message.encoded, *message.refused))
        self._release_in_order()

    def _release_in_order(self) -> None:
        """Release encoded groups in the order of prompts, whichever worker was faster."""
        while self._next_release < self._read_until:
            group = self.state.groups.get(self._next_release)
            if group is not None and group.state == "encoding":
                return
            if group is not None:
                waiting = self.state.windows.waiting if self.state.window_groups else self.state.fresh
                waiting.append(group.id)
            self._next_release += 1

    # -- rewards ----------------------------------------------------------------------------------------

    def take_completed(self) -> None:
        """Queue complete groups for scoring."""
        if not self.state.completed:  # nearly always
            return
        for group in self.state.completed:
            if group.state != GONE:  # else it was removed since
                move_group(group, "completed")
                if is_rewarded(group):
                    take_rewards(group)
                    self.purposes.of(group).on_scored(group)
                else:
                    self._to_score.append(group.id)
        self.state.completed.clear()

    def on_scored(self, worker: TextWorker, message: GroupScored) -> None:
        """A group has its rewards."""
        group = self._answered(worker, message.group, message.attempt)
        if group is None:
            return
        take_rewards(group, message.rewards, message.parts)
        self.purposes.of(group).on_scored(group)

    def on_score_failed(self, worker: TextWorker, message: ScoreFailed) -> None:
        """Score the group again, or set its prompt aside; a function that never works ends the run."""
        group = self._answered(worker, message.group, message.attempt)
        if group is None:
            return
        text = f"The reward failed on prompt {group.id}, at {worker.name}: {message.reason}"
        text += f"\nThe row was: {message.row}"
        if not self.purposes.of(group).on_call_failed(group, text):
            self._to_score.append(group.id)  # the run ends; one that goes on with it scores the group again
            return
        group.score_failures += 1
        if group.score_failures > self.state.config.reward.retries:
            tries = f"It was tried {group.score_failures} times. The row was: {message.row}"
            reason = f"the reward failed: {message.reason}\n{tries}"
            self.purposes.of(group).on_failed(group, reason)
        else:
            self._to_score.append(group.id)

    def _answered(self, worker: TextWorker, group_id: int, attempt: int) -> Group | None:
        """The group that an answer is for; None if it was assigned elsewhere or removed meanwhile."""
        group = self.state.groups.get(group_id)
        if group is None or group_id not in worker.scoring or group.score_attempt != attempt:
            return None
        worker.scoring.discard(group_id)
        return group

    # -- reward workers ---------------------------------------------------------------------------------

    def on_died(self, worker: TextWorker) -> None:
        """A worker crashed or went silent: suspect the groups that it was encoding and scoring."""
        groups = self.state.groups
        for group in [groups[id] for id in sorted(worker.encoding | worker.scoring) if id in groups]:
            group.reward_workers_lost_alone += self._is_suspect(group)
            group.reward_workers_lost += 1
            if group.reward_workers_lost_alone <= self.state.config.reward.retries:
                continue
            is_prompt = group.id in worker.encoding
            worker.encoding.discard(group.id)
            worker.scoring.discard(group.id)
            done, do = ("encoded", "encode") if is_prompt else ("scored", "score")
            text = f"{group.reward_workers_lost} reward workers died while they {done} it, "
            text += f"{group.reward_workers_lost_alone} of them with nothing else to {do}."
            self.purposes.of(group).on_failed(group, text)
            if is_prompt:
                self._release_in_order()

    def on_lost(self, worker: TextWorker) -> None:
        """A worker is gone: assign its work to others."""
        self._to_encode = sorted({*self._to_encode, *(g for g in worker.encoding if g in self.state.groups)})
        self._to_score.put_back(g for g in worker.scoring if g in self.state.groups)
        worker.encoding, worker.scoring = set(), set()

    def assign(self) -> None:
        """Assign encoding and scoring, to the least loaded worker first."""
        while self._to_encode:
            chunk = self._next_chunk()
            worker = self._worker_to_encode(chunk)
            if worker is None:
                if self._is_suspect_id(chunk[0]):
                    return  # until a worker has nothing to do
                break
            del self._to_encode[: len(chunk)]
            worker.encoding.update(chunk)
            self.state.send(worker.peer, Encode(tuple(chunk)))
        while self._to_score:
            group = self.state.groups.get(self._to_score.first())
            if group is not None:
                worker = self._worker_to_score(group)
                if worker is None:
                    return
                group.score_attempt += 1
                worker.scoring.add(group.id)
                score = Score(group.id, group.score_attempt, _items(group), group.is_evaluation)
                self.state.send(worker.peer, score)
            self._to_score.pop()  # no group: it was removed while it waited

    def _next_chunk(self) -> list[int]:
        """The next prompts for one Encode: a suspect one alone, others up to the first suspect one."""
        chunk = self._to_encode[:ENCODE_AT_ONCE]
        suspect = next((place for place, id in enumerate(chunk) if self._is_suspect_id(id)), len(chunk))
        return chunk[: max(suspect, 1)]

    def _worker_to_encode(self, chunk: list[int]) -> TextWorker | None:
        if self._is_suspect_id(chunk[0]):
            return self._idle_worker()
        workers = self.state.registry.text_workers()
        free = (worker for worker in workers if not self._is_with_suspect(worker))
        return min(free, key=lambda worker: worker.load, default=None)

    def _worker_to_score(self, group: Group) -> TextWorker | None:
        """The least busy reward worker with room."""
        if self._is_suspect(group):
            return self._idle_worker()
        workers = self.state.registry.text_workers()
        free = (worker for worker in workers if worker.has_room and not self._is_with_suspect(worker))
        return min(free, key=lambda worker: worker.load, default=None)

    def _idle_worker(self) -> TextWorker | None:
        """A reward worker for a suspect group: one with nothing to do. Nothing joins the group there."""
        return next((worker for worker in self.state.registry.text_workers() if not worker.pending), None)

    def _is_suspect(self, group: Group) -> bool:
        """Whether so many workers died while they encoded or scored the group that it may be the cause."""
        return group.reward_workers_lost >= max(self.state.config.reward.retries, 1)

    def _is_suspect_id(self, id: int) -> bool:
        group = self.state.groups.get(id)
        return group is not None and self._is_suspect(group)

    def _is_with_suspect(self, worker: TextWorker) -> bool:
        """Whether it encodes or scores a suspect group, which is all that it does."""
        return worker.pending == 1 and any(map(self._is_suspect_id, (*worker.encoding, *worker.scoring)))


def _items(group: Group) -> tuple[ScoreItem, ...]:
    kept = list(group.kept)
    talks = [((one.number, one.trial),) if one.has_talk else () for one in group.kept_episodes]
    pairs = list(zip(kept, talks or [()] * len(kept), strict=True))
    asked = [pairs[place] for place in places_to_score(group)]
    return tuple(ScoreItem(m.id.member, m.ending, tuple(m.segments), talk) for m, talk in asked)
