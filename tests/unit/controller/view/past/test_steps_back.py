"""A step back costs few steps of the core, also the first one after a far jump."""

import pytest

from controller.view.past import replica as replicas
from controller.view.past.replica import MOST_NEAR, NEAR, Replica
from tests.unit.controller.view.past.test_replica import (  # noqa: F401 - fixtures
    digest,
    recording,
    truth,
)


@pytest.fixture
def replica(recording):  # noqa: F811
    """A replica that counts the events that it steps through, and the cores that it makes."""
    found = Replica(recording, spacing=10**9)
    found.stepped, found.thawed = [], []
    take, thaw = found._take, found._thaw
    found._take = lambda turn: (found.stepped.append(turn.recorded.number), take(turn))
    found._thaw = lambda image: (found.thawed.append(1), thaw(image))[1]
    return found


def test_the_first_step_back_from_a_far_jump_starts_near(replica, truth):  # noqa: F811
    for share in (0.6, 0.95, 0.45):
        number = int(share * replica.last)
        replica.at(number)
        replica.stepped.clear()
        replica.thawed.clear()
        assert replica.back().number == number - 1
        assert digest(replica.image()) == truth[number - 1]
        assert len(replica.stepped) < 2 * NEAR
        assert len(replica.thawed) <= 1


def test_images_near_where_it_went_are_few(replica, truth, monkeypatch):  # noqa: F811
    monkeypatch.setattr(replicas, "NEAR", 4)
    for number in range(20, replica.last, 20):
        replica.at(1)
        replica.at(number)
        assert digest(replica.image()) == truth[number]
    assert len(replica._near) == MOST_NEAR


def test_who_follows_the_newest_event_leaves_no_images(recording):  # noqa: F811
    replica = Replica(recording, spacing=10**9, goes_back=False)
    replica.at(replica.last)
    assert replica._near == {}


def test_a_copy_is_equal_and_goes_its_own_way(replica, truth):  # noqa: F811
    replica.at(replica.last // 2)
    copy = replica.copy()
    copy.state.groups.clear()
    assert digest(replica.image()) == truth[replica.last // 2]
