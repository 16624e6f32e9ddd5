"""What is kept of groups in memory: a group that is put back is filled where it is, not where it was."""

from controller.durability.payload_cache import Held, Pool

KEY = (1, 0, 0)  # group, member, attempt


def test_what_is_added_to_a_group_is_added_to_the_one_that_is_there():
    pool = Pool(1 << 20)
    pool.add(1, Held())
    pair = pool.response(KEY)
    assert pair is not None
    pair[0].extend(b"gone")
    pool.take(1)
    assert pool.response(KEY) is None
    pool.add(1, Held())
    again = pool.response(KEY)
    assert again is not None
    again[0].extend(b"here")
    assert pool.groups[1].responses[0, 0][0] == b"here"


def test_a_group_that_has_moved_is_filled_where_it_went():
    live, other = Pool(1 << 20), Pool(1 << 20)
    live.add(1, Held())
    live.response(KEY)
    live.move(1, other)
    assert live.response(KEY) is None
    pair = other.response(KEY)
    assert pair is not None
    pair[0].extend(b"here")
    assert other.groups[1].responses[0, 0][0] == b"here"
