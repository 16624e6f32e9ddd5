"""Books of the oracle's own: which tokens exist and who trained what, from what is said on the links alone.

Invariants that are asserted: a response is made of tokens that were sampled, in their order, of the versions
that sampled them, which never decrease; attempts are numbered upwards; a group is trained in one batch, as
a whole, and a batch that is sent again is the same; no batch holds a token older than the bound, where there
is one; batches come in the order of versions; every token that was heard is accounted for.
"""

from collections import Counter

from controller.core.core import Core
from controller.core.events import Event, Received
from protocol import messages
from protocol.messages import Generated, Message, Segment, Train, TrainAhead, TrainItem
from tests.simulation.oracle.world import World

Key = tuple[int, int, int]


class Books:
    """What has happened, as the peers saw it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.versions: dict[Key, list[int]] = {}  # of each token of each attempt
        self.endings: dict[Key, str] = {}
        self.attempts: Counter[tuple[int, int]] = Counter()  # newest of each trajectory
        self.batches: dict[int, tuple[TrainItem, ...]] = {}  # train_version -> what it was made of
        self.trained: dict[int, int] = {}  # group -> train_version
        self.ahead: dict[str, list[TrainItem]] = {}  # sent to a trainer before its batch
        self.heard_tokens = 0
        self.steps: list[int] = []  # of the lines that were reported

    # -- what peers do ----------------------------------------------------------------------------------

    def sampled(self, key: Key, version: int, count: int) -> None:
        """An engine made so many tokens."""
        self.versions.setdefault(tuple(key), []).extend([version] * count)

    def ended(self, key: Key, ending: str) -> None:
        """An attempt is over."""
        self.endings[tuple(key)] = ending

    # -- what is said -----------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """The core hears this next."""
        match event:
            case Received(_, Generated(deltas=deltas)):
                self.heard_tokens += sum(delta.count for delta in deltas)
            case Received(_, messages.TrainStepFinished(policy_version)):
                assert policy_version - 1 in self.batches, f"version {policy_version} is made of nothing"

    def sent(self, peer: str, message: Message) -> None:
        """The core says this."""
        match message:
            case messages.Route(group, member, attempt, _, _, segments):
                assert attempt > self.attempts[group, member], f"{group}.{member}: attempt {attempt} again"
                self.attempts[group, member] = attempt
                self._check_tokens(group, member, segments)
                assert group not in self.trained, f"group {group} is trained, and runs"
            case messages.Score(group, _, items):
                for item in items:
                    self._check_tokens(group, item.member, item.segments)
            case TrainAhead(train_version, items):
                assert not any(item.group in self.trained for item in items), "trained ahead, and before"
                assert train_version == max(self.batches, default=-1) + 1, f"ahead of batch {train_version}"
                self.ahead.setdefault(peer, []).extend(items)
            case Train():
                self._check_batch(peer, message)

    def reported(self, line: dict[str, object]) -> None:
        """A train step is told to people."""
        self.steps.append(int(str(line["step"])))

    def check_end(self, core: Core) -> None:
        """Once the run is over."""
        tokens, is_sampled = core.snapshot().tokens, not self.world.config.trainer.is_supervised
        assert not is_sampled or tokens.generated == self.heard_tokens, f"{tokens}, {self.heard_tokens} heard"
        items = [
            item for version, batch in self.batches.items() if version < core.state.steps for item in batch
        ]
        assert tokens.trained == sum(item.response_tokens for item in items), "tokens that were trained"
        assert self.steps == list(range(1, core.state.steps + 1)), f"lines of steps {self.steps}"
        violations = core.summary().get("staleness/violations", 0)
        assert not (self.world.is_strict and violations), f"{violations} violations"

    # -- inside -----------------------------------------------------------------------------------------

    def _check_tokens(self, group: int, member: int, segments: tuple[Segment, ...]) -> int:
        """The tokens of a response exist; returns how many there are."""
        used: Counter[int] = Counter()
        newest = count = 0
        for attempt, version, length in segments:
            assert version >= newest, f"versions of {group}.{member} decrease: {segments}"
            there = self.versions.get((group, member, attempt), [])[used[attempt] : used[attempt] + length]
            assert there == [version] * length, f"{group}.{member} has {segments}, sampled were {there}"
            used[attempt] += length
            newest, count = version, count + length
        assert list(used) == sorted(used), f"{group}.{member}: attempts of {segments} are out of order"
        return count

    def _check_batch(self, peer: str, train: Train) -> None:
        version, items = train.train_version, train.items
        ahead = self.ahead.pop(peer, [])
        assert list(items[: train.ahead]) == ahead, f"batch {version}: {train.ahead} were sent ahead"
        if version in self.batches:
            assert set(items) == set(self.batches[version]), f"batch {version} is another one now"
            return
        assert version == max(self.batches, default=-1) + 1, f"batch {version} is out of order"
        self.batches[version] = items
        config = self.world.config
        members = Counter(item.group for item in items)
        assert len(members) == config.trainer.batch_groups, f"batch {version} has {len(members)} groups"
        size = 1 if config.trainer.is_supervised else config.rollout.group_size
        assert set(members.values()) == {size}, f"batch {version}: {members}"
        assert len({(item.group, item.member) for item in items}) == len(items), "a response is there twice"
        for group in members:
            assert group not in self.trained, f"group {group}: batches {self.trained[group]} and {version}"
            self.trained[group] = version
        if not config.trainer.is_supervised:
            for item in items:
                self._check_item(item, version)

    def _check_item(self, item: TrainItem, train_version: int) -> None:
        count = self._check_tokens(item.group, item.member, item.segments)
        oldest = min(segment.policy_version for segment in item.segments)
        age = train_version - oldest
        bound = self.world.config.staleness.max_staleness
        assert not self.world.is_strict or age <= bound, f"{item} is {age} versions old, in {train_version}"
        ending = self.endings.get((item.group, item.member, item.segments[-1].attempt))
        is_cut = self.world.config.staleness.stragglers == "truncate" and item.ending == "length"
        # its end may be of a later attempt, which came to nothing more
        assert is_cut or ending == item.ending or count, f"{item} ended with {ending}"
        assert count <= self.world.config.rollout.max_response_tokens
