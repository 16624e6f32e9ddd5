"""What is next among deadlines that move, against a plain search of all, and one correction at a time."""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from controller.core.state.leases import FEW, Leases


@dataclass
class Watched:
    deadline: float | None
    number: int


class OneByOne(Leases[Watched]):
    """Corrects entries only as they surface."""

    def _correct_all(self):
        pass


EQUALS = [("all later", 2)] * 4 + [("new", 34), ("new", 30), ("earlier", 9)]
"""Many that surface together, and two equal deadlines, one of which was watched again."""
MOVES = st.lists(
    st.tuples(st.sampled_from(["later", "all later", "ended", "earlier", "new", "look"]), st.integers(0, 99)),
    max_size=60,
)


@example(first=FEW + 1, moves=EQUALS)
@given(first=st.integers(0, 3 * FEW), moves=MOVES)
def test_what_is_next_does_not_depend_on_what_is_corrected_together(first, moves):
    both, watched = (Leases[Watched](), OneByOne()), list[Watched]()

    def watch(deadline):
        watched.append(Watched(deadline, len(watched)))
        for leases in both:
            leases.watch(watched[-1])

    for _ in range(first):
        watch(20.0)
    for move, which in moves:
        there = [one for one in watched if one.deadline is not None]
        one = there[which % len(there)] if there else None
        match move:
            case "later" if one:
                one.deadline += which % 7
            case "all later":
                for each in there:
                    each.deadline += 1 + which % 3
            case "ended" if one:
                one.deadline = None
            case "earlier" if one:
                one.deadline = max(0.0, one.deadline - which % 5)
                for leases in both:
                    leases.watch(one)
            case "new":
                watch(float(which))
            case _:
                look(both, watched)
    look(both, watched)


def look(both, watched):
    earliest = min((one.deadline for one in watched if one.deadline is not None), default=None)
    for leases in both:
        assert leases.next() == earliest
    if earliest is not None:
        assert both[0].first() is both[1].first()
