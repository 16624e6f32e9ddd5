"""What an instance tells of attempts that do nothing but go on, in columns: nearly all that comes.

Invariants: an attempt stands here only while its trajectory runs there, has taken as many tokens as were told
of, and goes on with its last segment, of the one version that all here go on with; so a report that begins
with exactly these attempts, in this order, changes one column, and what is said of a trajectory is worked out
when somebody looks at it. Whatever else happens to an attempt takes it out first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from operator import add, le
from typing import NamedTuple

from controller.core.state.progress.trajectory import Trajectory
from protocol.messages import Generated

NEVER = -1


class Lead(NamedTuple):
    """The first deltas of a report, that do nothing but go on."""

    deltas: int  # how many
    ends: list[int]  # tokens of each attempt, with those that it brings
    due: list[int]  # places of those whose prediction is due


@dataclass(slots=True, eq=False)
class Given:
    """An attempt that an instance was told to make."""

    order: int  # its place among what the instance was told
    known: int = 0  # tokens that it had told of when it was last taken out of the columns
    most: int = 0  # tokens that it may have; 0: that has to be worked out
    member: Trajectory | None = None  # whose attempt it is, once it has told of it
    is_called_back: bool = False  # it may be handed back unfinished
    is_kept: bool = False  # it was begun under a controller that is gone
    columns: "Columns | None" = field(default=None, repr=False)
    place: int = 0  # in the columns, at most: those before it may have left

    @property
    def reported(self) -> int:
        """Tokens that it has told of."""
        return self.known if self.columns is None else self.columns.ends[self.columns.place_of(self)]

    @property
    def heard_at(self) -> float:
        """When that was, of one in the columns."""
        assert self.columns is not None, "it stands alone"
        return self.columns.heard_at

    def leave(self) -> None:
        """Have its progress here from now on, and that of its trajectory there."""
        if self.columns is not None:
            self.columns.drop(self)


class Columns:
    """The attempts of one instance that go on: item i of each list belongs to the i-th."""

    __slots__ = ("attempts", "ends", "given", "groups", "heard_at", "looks", "members", "version")

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.members: list[int] = []
        self.attempts: list[int] = []
        self.ends: list[int] = []  # tokens of the attempt so far
        self.looks: list[int] = []  # tokens of the attempt from which on its trajectory has to be looked at
        self.given: list[Given] = []
        self.version = NEVER  # that all of them go on with
        self.heard_at = 0.0  # the last report of all of them

    def led_by(self, message: Generated) -> int:
        """How many deltas it begins with that are of all that stand here, in this order; 0 if it does not."""
        count = len(self.groups)
        is_led = (
            list(message.groups[:count]) == self.groups
            and list(message.attempts[:count]) == self.attempts
            and list(message.members[:count]) == self.members
        )
        return count if is_led else 0

    def lead(self, message: Generated, versions: tuple[int | None, ...]) -> Lead | None:
        """What of a report does nothing but go on, if it begins with that and no more is in it than progress.

        `versions`: those that the instance may sample from.
        """
        counts = message.counts
        if message.endings.count("") != len(counts):  # nearly all that is not led by them
            return None
        count = self.led_by(message)
        if (
            not count
            or self.version not in versions
            or message.policy_versions.count(self.version) != len(counts)
            or min(counts) <= 0
            or list(message.starts[:count]) != self.ends
        ):
            return None
        ends = list(map(add, self.ends, counts))
        due = list(compress(range(count), map(le, self.looks, ends)))
        if any(ends[place] > self.given[place].most for place in due):
            return None
        return Lead(count, ends, due)

    def add(self, given: Given, message_key: tuple[int, int, int], version: int) -> None:
        """An attempt goes on from here; its trajectory has `version` last, and is as far as it is told."""
        member = given.member
        assert member is not None, "its trajectory is known"
        if version != self.version:
            self.clear()
            self.version = version
        given.columns, given.place = self, len(self.given)
        group, number, attempt = message_key
        self.groups.append(group)
        self.members.append(number)
        self.attempts.append(attempt)
        self.ends.append(given.known)
        self.looks.append(0)
        self.given.append(given)
        member.going = given
        self.look_again(given.place, member)

    def look_again(self, place: int, member: Trajectory) -> None:
        """When this trajectory has to be looked at next: its prediction is new."""
        before = member.response_tokens - member.reported
        self.looks[place] = min(self.given[place].most + 1, member.next_prediction_at - before)

    def due(self, lead: Lead) -> Iterator[Trajectory]:
        """Those whose prediction is due, one by one: it is made before the next one comes."""
        for place in lead.due:
            given = self.given[place]
            member = given.member
            assert member is not None, "only those stand here whose trajectory is known"
            given.place = place
            member.catch_up(given)
            member.going = None  # so that nobody asks again what has just been taken over
            yield member
            self.look_again(place, member)
            member.going = given

    def place_of(self, given: Given) -> int:
        """Where an attempt stands now."""
        place, there = given.place, self.given
        if place >= len(there):
            place = len(there) - 1
        while there[place] is not given:
            place -= 1
        given.place = place
        return place

    def drop(self, given: Given) -> None:
        """An attempt is told of by itself from now on."""
        place, member = self.place_of(given), given.member
        assert member is not None, "only those stand here whose trajectory is known"
        member.catch_up(given)
        member.going = None
        given.known, given.columns = self.ends[place], None
        for column in (self.groups, self.members, self.attempts, self.ends, self.looks, self.given):
            del column[place]

    def clear(self) -> None:
        """All are told of by themselves from now on."""
        for given in self.given[::-1]:
            self.drop(given)

    def settle(self) -> None:
        """Nothing lags behind, wherever it has been looked at before: equal cores have equal images."""
        for place, given in enumerate(self.given):
            given.place = place
            if given.member is not None:
                given.member.catch_up(given)
