"""The story of a group tells of its episodes: when they began, what they were given, what was sampled."""

import pytest

from controller.history.story import about
from protocol import messages
from protocol.messages import GIVEN, Segment

ASK = messages.Ask(3, 1, 1, 0, 1, 2, 0, 12, "d", 5)
TOLD = [
    (messages.Begin(3, 1, 2, 9, 4, 2), "Begin episode 1, trial 2"),
    (messages.Begin(3, 1, 1, 9, 4, 2, 2), "Begin episode 1, trial 1, 2 turns known"),
    (ASK, "episode 1 asks for turn 1: 12 tokens given after 0"),
    (
        messages.Ask(3, 1, 1, 0, 3, 2, 0, 12, "d", 5, cause="edited"),
        "episode 1 asks for turn 1 in trajectory 3.3 (edited): 12 tokens given after 0",
    ),
    (
        messages.Turn(3, 1, 1, 0, 1, 4, "stop", (Segment(3, 0, 2), Segment(4, 1, 5))),
        "turn 1 of episode 1: 2 tokens by version 0 + 5 tokens by version 1, ends by stop",
    ),
    (messages.EpisodeEnded(3, 1, 1, "turns", (0.5,)), "episode 1 ended by turns, reward 0.5"),
    (messages.EpisodeEnded(3, 1, 1, "stop", ()), "episode 1 ended by stop, to be scored"),
    (messages.EpisodeFailed(3, 1, 1, "agent", "it raised", "{}"), "episode 1 failed (agent): it raised"),
    (
        messages.EndEpisodes(((2, 0, 1), (3, 1, 1)), "enough have ended"),
        "episode 1 is ended: enough have ended",
    ),
]


def test_what_an_episode_noted_and_said_is_told_with_its_end():
    ended = messages.EpisodeEnded(
        3, 1, 1, "stop", (1.0,), metrics=(("depth", 2.0), ("hits", 0.5)), log="it began\nit won\n"
    )
    assert list(about(ended, 3)) == [
        "episode 1 ended by stop, reward 1; depth 2; hits 0.5",
        "episode 1 said: it began",
        "episode 1 said: it won",
    ]


@pytest.mark.parametrize(("message", "words"), TOLD, ids=lambda value: type(value).__name__)
def test_a_message_is_told_to_the_group_that_it_is_about(message, words):
    assert list(about(message, 3)) == [words]
    assert list(about(message, 4)) == []


def test_a_route_tells_what_was_given_from_what_was_sampled():
    route = messages.Route(3, 1, 5, 7, 4, (Segment(2, GIVEN, 12), Segment(3, 0, 2)), begins=1)
    (words,) = about(route, 3)
    assert "12 tokens given + 2 tokens by version 0" in words
