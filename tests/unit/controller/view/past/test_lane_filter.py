"""Which lanes of a timeline are shown: by name, by shares of time, the slowest, every n-th."""

import pytest

from controller.view.past.lane_filter import LaneFacts, LaneFilter, filter_of, is_named, is_state
from controller.view.past.lanes import KINDS
from protocol.errors import RunError


def lane(name, tokens=0.0, **seconds):
    names = {"bound": "idle: bound", "cap": "idle: cap", "rollout": "waits: rollout"}
    return LaneFacts(name, {names.get(kind, kind): held for kind, held in seconds.items()}, tokens)


LANES = [
    lane("trainer", training=6, rollout=4),
    lane("rollout-0", 100, generating=10),
    lane("rollout-1", 20, generating=4, bound=5, cap=1),
    lane("rollout-10", 300, generating=5, bound=1, gone=94),
    lane("rollout-11"),
    lane("reward-0", scoring=1, **{"idle: nothing to do": 99}),
]


def shown(text):
    return [LANES[place].name for place in filter_of(text, KINDS).of(LANES)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", [one.name for one in LANES]),
        ("rollout", ["rollout-0", "rollout-1", "rollout-10", "rollout-11"]),
        ("ROLLOUT-1", ["rollout-1", "rollout-10", "rollout-11"]),
        ("rollout-1*", ["rollout-1", "rollout-10", "rollout-11"]),
        ("rollout-?", ["rollout-0", "rollout-1"]),
        ("reward*, trainer", ["trainer", "reward-0"]),
        ("nobody", []),
        ("idle>20%", ["trainer", "rollout-1", "reward-0"]),
        ("idle > 20 %", ["trainer", "rollout-1", "reward-0"]),
        ("idle>20", ["trainer", "rollout-1", "reward-0"]),
        ("idle<=40%", ["trainer", "rollout-0", "rollout-10"]),
        ("idle:bound>=50%", ["rollout-1"]),
        ("idle: bound > 10%", ["rollout-1", "rollout-10"]),
        ("generating<100% rollout", ["rollout-1", "rollout-10"]),
        ("idle>20% idle<50%", ["trainer"]),
        ("waits>0%", ["trainer"]),
        ("every 2", ["trainer", "rollout-1", "rollout-11"]),
        ("every 16th", ["trainer"]),
        ("rollout every 3rd", ["rollout-0", "rollout-11"]),
        ("slowest 2", ["rollout-1", "rollout-0"]),
        ("slowest 10", ["rollout-1", "rollout-0", "rollout-10"]),
        ("idle>10%, slowest 1", ["rollout-1"]),
    ],
)
def test_a_filter_lets_through_what_it_says(text, names):
    assert shown(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("idle>", "is no filter; expected a name such as"),
        (">20%", "is no filter"),
        ("idle>x%", "is no filter"),
        ("lazy>20%", "No lane is ever 'lazy'. The states are idle, waits, gone"),
        ("x" * 201, "too long; expected 200"),
        ("a " * 13, "too long; expected 12"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(text, words):
    with pytest.raises(RunError, match=words):
        filter_of(text, KINDS)


def test_every_state_of_a_lane_can_be_asked_for():
    for kind in KINDS:
        word = kind.replace(": ", ":").replace(" ", "-")
        assert is_state(word, kind)
        assert len(filter_of(f"{word}>5%", KINDS).shares) == 1
    assert sum(is_state("idle", kind) for kind in KINDS) == 14


def test_names_are_no_more_than_what_they_say():
    assert not is_named("rollout-1[", "rollout-1")
    assert is_named("rollout-[01]", "rollout-0")
    assert filter_of("slowest", KINDS) == LaneFilter(names=("slowest",))
