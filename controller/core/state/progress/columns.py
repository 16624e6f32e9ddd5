"""Progress of an instance's attempts in columns, so that a report that only continues them is cheap.

Nearly all reports are such. Invariants: an attempt is in the columns only while its trajectory runs at the
instance, has accepted all reported tokens and continues its last segment, whose version all attempts here
share; so a report that begins with exactly these attempts, in this order, changes one column, and a
trajectory catches up when it is read. Anything else that happens to an attempt takes it out first.
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
    """The leading deltas of a report that only continue the attempts in the columns."""

    deltas: int  # number of them
    ends: list[int]  # tokens of each attempt after them
    due: list[int]  # places of the attempts whose prediction is due


@dataclass(slots=True, eq=False)
class Given:
    """An attempt that an instance was told to make."""

    order: int  # number of the order that gave it
    known: int = 0  # tokens reported when it was last taken out of the columns
    most: int = 0  # tokens that it may have; 0: not computed
    member: Trajectory | None = None  # its trajectory, once it has reported
    is_called_back: bool = False  # whether it may be handed back unfinished
    is_kept: bool = False  # whether it was begun under an earlier controller
    columns: "Columns | None" = field(default=None, repr=False)
    place: int = 0  # upper bound of its place in the columns, as attempts before it may have left

    @property
    def reported(self) -> int:
        """Tokens reported so far."""
        return self.known if self.columns is None else self.columns.ends[self.columns.place_of(self)]

    @property
    def heard_at(self) -> float:
        """Time of the last report, of an attempt in the columns."""
        assert self.columns is not None, "it stands alone"
        return self.columns.heard_at

    def leave(self) -> None:
        """Leave the columns: keep its progress here, and that of its trajectory there."""
        if self.columns is not None:
            self.columns.drop(self)


class Columns:
    """The continuing attempts of one instance; item i of each list belongs to the i-th attempt."""

    __slots__ = ("attempts", "ends", "given", "groups", "heard_at", "looks", "members", "version")

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.members: list[int] = []
        self.attempts: list[int] = []
        self.ends: list[int] = []  # tokens of the attempt so far
        self.looks: list[int] = []  # tokens of the attempt at which its trajectory is predicted or checked
        self.given: list[Given] = []
        self.version = NEVER  # version that all of them continue with
        self.heard_at = 0.0  # time of the last report of all of them

    def led_by(self, message: Generated) -> int:
        """Number of attempts here if a report begins with exactly these, in this order; else 0."""
        count = len(self.groups)
        is_led = (
            list(message.groups[:count]) == self.groups
            and list(message.attempts[:count]) == self.attempts
            and list(message.members[:count]) == self.members
        )
        return count if is_led else 0

    def lead(self, message: Generated, versions: tuple[int | None, ...]) -> Lead | None:
        """The leading deltas of a report that continue exactly the attempts here; None if it does not apply.

        The whole report must be progress of one version. `versions`: those that the instance may sample from.
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
        """Add a continuing attempt, whose trajectory is up to date and ends with a segment of `version`."""
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
        """Set when a trajectory has to be looked at next, after a new prediction."""
        before = member.response_tokens - member.reported
        self.looks[place] = min(self.given[place].most + 1, member.next_prediction_at - before)

    def due(self, lead: Lead) -> Iterator[Trajectory]:
        """Trajectories whose prediction is due; the caller predicts each before it takes the next."""
        for place in lead.due:
            given = self.given[place]
            member = given.member
            assert member is not None, "only those stand here whose trajectory is known"
            given.place = place
            member.catch_up(self.ends[place], self.heard_at)
            member.going = None  # it has just caught up
            yield member
            self.look_again(place, member)
            member.going = given

    def place_of(self, given: Given) -> int:
        """The place of an attempt."""
        place, there = given.place, self.given
        if place >= len(there):
            place = len(there) - 1
        while there[place] is not given:
            place -= 1
        given.place = place
        return place

    def drop(self, given: Given) -> None:
        """Take an attempt out."""
        place, member = self.place_of(given), given.member
        assert member is not None, "only those stand here whose trajectory is known"
        member.catch_up(self.ends[place], self.heard_at)
        member.going = None
        given.known, given.columns = self.ends[place], None
        for column in (self.groups, self.members, self.attempts, self.ends, self.looks, self.given):
            del column[place]

    def clear(self) -> None:
        """Take all attempts out."""
        for given in self.given[::-1]:
            self.drop(given)

    def settle(self) -> None:
        """Let all trajectories catch up, so that equal cores have equal images."""
        for place, given in enumerate(self.given):
            given.place = place
            if given.member is not None:
                given.member.catch_up(self.ends[place], self.heard_at)
