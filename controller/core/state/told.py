"""Orders that each worker has got and not answered: everything it can honestly speak of.

Invariants: records are added by messages to a worker, in their order, and removed by its messages; both
travel in order, so the answer to a later order comes after the last message about an earlier one: a
called-off attempt is remembered until then, and no longer.
"""

from dataclasses import dataclass, field
from itertools import islice
from operator import add, attrgetter, le

from controller.core.state.progress.columns import Columns, Given, Lead
from protocol import messages
from protocol.messages import Ending, Generated, Message, Role

Key = tuple[int, int, int]
"""(group, member, attempt)."""
Row = tuple[int, int, int, int, int, int, Ending]
"""One delta of a report: the fields of `Delta`."""
_reported, _most = attrgetter("reported"), attrgetter("most")


@dataclass
class Pulling:
    """A version that an instance is loading."""

    policy_version: int
    digest: str
    order: int
    since: float


@dataclass
class Told:
    """Orders of a worker of any role."""

    since: float  # when it attached
    may_serve: bool = False  # whether it was asked for its endpoint

    def tell(self, message: Message, now: float) -> None:
        """A message is sent to the worker."""
        del now
        self.may_serve = self.may_serve or isinstance(message, messages.Serve)

    def hear(self, message: Message, now: float) -> None:
        """The worker has sent this message, which is plausible."""


@dataclass
class ToldInstance(Told):
    """A rollout worker's orders."""

    given: dict[Key, Given] = field(default_factory=dict)
    called_off: dict[Key, Given] = field(default_factory=dict)
    """Called-off attempts; the first of them was called off first."""
    orders: int = 0
    pulling: Pulling | None = None
    version: int = -1  # version that it samples from, by its own reports
    has_held: bool = False  # whether it has sent Holding
    columns: Columns = field(default_factory=Columns)
    """The progress of given attempts that only continue."""
    lead: Lead | None = None
    """The part of the report in hand that continues the attempts in the columns."""
    steady: list[Given] = field(default_factory=list)
    """The attempts of the report in hand, if it only continues attempts and those are not in the columns."""
    hand_backs: int = 0  # messages that handed back attempts which were not called back
    status_at: float = 0.0  # time of its last load report

    def tell(self, message: Message, now: float) -> None:
        """Note routes, pulls, interrupts and aborts."""
        self.orders += 1
        if type(message) is messages.Route:  # by far the most frequent order
            key = message.group, message.member, message.attempt
            self.given[key] = Given(self.orders, most=message.max_new_tokens)
            return
        match message:
            case messages.Keep(attempts):
                for group, member, attempt, start in attempts:  # a controller that is gone may have called
                    kept = Given(self.orders, start, is_called_back=True, is_kept=True)  # it back
                    self.given[group, member, attempt] = kept
            case messages.Interrupt(attempts):
                for key in attempts:
                    if (given := self.given.get(key)) is not None:
                        given.is_called_back = True
            case messages.Abort(attempts):
                for key in attempts:
                    if (given := self.given.pop(key, None)) is not None:
                        given.leave()
                        self.called_off[key] = Given(self.orders, given.known)
            case messages.Pull(policy_version, _, digest):
                self.pulling = Pulling(policy_version, digest, self.orders, now)
            case messages.Serve():
                self.may_serve = True
            case _:
                pass

    def hear(self, message: Message, now: float) -> None:
        """Remove what the message answers."""
        match message:
            case Generated():
                self._generated(message)
            case messages.GenerationFailed(group, member, attempt):
                self._ended((group, member, attempt))
            case messages.Pulled(policy_version):
                self.version = policy_version
                self._pull_ended()
            case messages.PullFailed():
                self._pull_ended()
            case messages.InstanceStatus():
                self.status_at = now
            case messages.Holding(_, policy_version):
                self.version, self.has_held = policy_version, True
            case messages.Ready(policy_version):
                self.version = policy_version
            case _:
                pass

    def is_steady(self, message: Generated, versions: tuple[int | None, ...]) -> bool:
        """Whether a report only continues attempts; notes them in `steady`.

        Each attempt is given, not ended and in the report once; all have one of these versions; tokens begin
        where the last report ended, and stay within the limit.
        """
        self.steady = []
        if any(message.endings):
            return False
        try:
            given = list(map(self.given.__getitem__, message.keys))
        except KeyError:
            return False
        count = len(given)
        is_steady = (
            count > 0
            and message.policy_versions[0] in versions
            and message.policy_versions.count(message.policy_versions[0]) == count
            and min(message.counts) > 0
            and len(set(given)) == count
            and tuple(map(_reported, given)) == message.starts
            and all(map(le, map(add, message.starts, message.counts), map(_most, given)))
        )
        self.steady = given if is_steady else []
        return is_steady

    def knows(self, key: Key) -> bool:
        """Whether it may still speak of this attempt."""
        return key in self.given or key in self.called_off

    def _generated(self, message: Generated) -> None:
        if self.steady:
            self._take_apart(len(self.steady))
            for given, start, count in zip(self.steady, message.starts, message.counts, strict=True):
                given.leave()
                given.known = start + count
            if self.called_off:
                self._passed(max(given.order for given in self.steady))
            return
        first, is_handed_back, order = 0, False, 0
        if self.lead is not None:
            first, self.columns.ends = self.lead.deltas, self.lead.ends
            if self.called_off:
                order = max(given.order for given in self.columns.given)
        else:
            self._take_apart(len(message.groups))
        rows = zip(message.keys, message.counts, message.endings, strict=True)
        for key, count, ending in islice(rows, first, None):
            there: Given | None = self.given.get(key)
            if there is not None:
                there.leave()
                is_handed_back |= ending == "interrupt" and not there.is_called_back
                order = max(order, there.order)
            else:
                there = self.called_off[key]
            there.known += count
            if ending:
                self._ended(key)
        self._passed(order)  # after the whole message: one that lies may tell of both
        self.hand_backs += is_handed_back

    def _take_apart(self, deltas: int) -> None:
        """A report does not match the columns: clear them if it is about most of their attempts."""
        if 2 * deltas > len(self.columns.given):
            self.columns.clear()

    def _ended(self, key: Key) -> None:
        if (given := self.given.pop(key, None)) is not None:
            given.leave()
        else:
            self.called_off.pop(key, None)

    def _pull_ended(self) -> None:
        assert self.pulling is not None
        self._passed(self.pulling.order)
        self.pulling = None

    def _passed(self, order: int) -> None:
        """The worker has got this order: it will not speak of attempts that earlier orders called off."""
        while self.called_off:
            first = next(iter(self.called_off))
            if self.called_off[first].order > order:
                return
            del self.called_off[first]


@dataclass
class ToldTextWorker(Told):
    """A reward worker's orders."""

    encodes: list[tuple[int, ...]] = field(default_factory=list)  # groups of each Encode
    scores: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, attempt) -> members

    def tell(self, message: Message, now: float) -> None:
        """Note prompts to encode and groups to score."""
        match message:
            case messages.Encode(groups):
                self.encodes.append(tuple(sorted(groups)))
            case messages.Score(group, attempt, items):
                self.scores[group, attempt] = len(items)
            case _:
                pass

    def hear(self, message: Message, now: float) -> None:
        """Remove what the message answers; each order is answered once."""
        match message:
            case messages.PromptsEncoded() | messages.ExamplesEncoded():
                self.encodes.remove(encoded_groups(message))
            case messages.GroupScored(group, attempt) | messages.ScoreFailed(group, attempt):
                del self.scores[group, attempt]
            case _:
                pass


def told_as(role: Role, now: float) -> Told:
    """The record of a worker that has just attached."""
    return _KINDS[role](now)


def encoded_groups(message: messages.PromptsEncoded | messages.ExamplesEncoded) -> tuple[int, ...]:
    """The groups of an answer, in the form of `ToldTextWorker.encodes`."""
    return tuple(sorted([group for group, *_ in (*message.encoded, *message.refused)]))


@dataclass
class ToldTrainer(Told):
    """A trainer's orders."""

    making: dict[int, float] = field(default_factory=dict)  # version to be made -> time of its Train
    ahead: list[int] = field(default_factory=list)  # train_version of each TrainAhead
    saving: list[int] = field(default_factory=list)  # versions to be saved
    may_publish: dict[int, None] = field(default_factory=dict)  # versions that it has, or is to make
    announcements: int = 0  # number of versions that it has published, or found on its host

    def owes(self, version: int) -> bool:
        """Whether it has this version and has not published it."""
        return version in self.may_publish and version not in self.making

    def tell(self, message: Message, now: float) -> None:
        """Note batches and checkpoints."""
        match message:
            case messages.Train(train_version, _, is_published):
                self.making[train_version + 1] = now
                if not is_published:
                    self.may_publish[train_version + 1] = None
            case messages.TrainAhead(train_version):
                self.ahead.append(train_version)
            case messages.SaveCheckpoint(policy_version):
                self.saving.append(policy_version)
            case messages.Serve():
                self.may_serve = True
            case _:
                pass

    def hear(self, message: Message, now: float) -> None:
        """Remove what the message answers; a trainer publishes once each version that it made or loaded."""
        match message:
            case messages.Ready(policy_version):
                self.may_publish[policy_version] = None
            case messages.TrainStepFinished(policy_version):
                del self.making[policy_version]
            case messages.TrainedAhead(train_version):
                self.ahead.remove(train_version)
            case messages.CheckpointSaved(policy_version):
                self.saving.remove(policy_version)
            case messages.PolicyPublished(policy_version):
                self.may_publish.pop(policy_version, None)
                self.announcements += 1
            case _:
                pass


_KINDS: dict[Role, type[Told]] = {
    "rollout": ToldInstance,
    "reward": ToldTextWorker,
    "trainer": ToldTrainer,
}
