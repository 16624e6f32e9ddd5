"""A step back costs few steps of the core, also the first one after a far jump."""

import pytest

from controller.view.past import replayed_core as module
from controller.view.past.replayed_core import MOST_NEAR, NEAR, ReplayedCore
from tests.unit.controller.view.past.test_replayed_core import (  # noqa: F401 - fixtures
    digest,
    recording,
    truth,
)


@pytest.fixture
def replayed(recording):  # noqa: F811
    """A replayed core that counts the events that it steps through, and the cores that it makes."""
    found = ReplayedCore(recording, spacing=10**9)
    found.stepped, found.thawed = [], []
    take, thaw = found._take, found._thaw
    found._take = lambda turn: (found.stepped.append(turn.recorded.number), take(turn))
    found._thaw = lambda image: (found.thawed.append(1), thaw(image))[1]
    return found


def test_the_first_step_back_from_a_far_jump_starts_near(replayed, truth):  # noqa: F811
    for share in (0.6, 0.95, 0.45):
        number = int(share * replayed.last)
        replayed.at(number)
        replayed.stepped.clear()
        replayed.thawed.clear()
        assert replayed.back().number == number - 1
        assert digest(replayed.image()) == truth[number - 1]
        assert len(replayed.stepped) < 2 * NEAR
        assert len(replayed.thawed) <= 1


def test_images_near_where_it_went_are_few(replayed, truth, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "NEAR", 4)
    for number in range(20, replayed.last, 20):
        replayed.at(1)
        replayed.at(number)
        assert digest(replayed.image()) == truth[number]
    assert len(replayed._near) == MOST_NEAR


def test_who_follows_the_newest_event_leaves_no_images(recording):  # noqa: F811
    replayed = ReplayedCore(recording, spacing=10**9, goes_back=False)
    replayed.at(replayed.last)
    assert replayed._near == {}


def test_a_copy_is_equal_and_goes_its_own_way(replayed, truth):  # noqa: F811
    replayed.at(replayed.last // 2)
    copy = replayed.copy()
    copy.state.groups.clear()
    assert digest(replayed.image()) == truth[replayed.last // 2]
