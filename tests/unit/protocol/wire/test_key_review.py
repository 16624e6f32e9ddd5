"""Keys are looked at again from time to time, whatever becomes of one look."""

import pytest

from protocol.wire.security import Keyring, make_keys
from protocol.wire.server import Server


async def test_a_look_that_fails_is_not_the_last(tmp_path, monkeypatch):
    make_keys(tmp_path / "keys", "node1", ("rollout",))
    keys = Keyring(tmp_path / "keys")
    nothing = {"on_message": lambda *_: None, "on_fault": lambda *_: None}
    server = Server("tcp://127.0.0.1:*", keys=keys, **nothing)
    server.start()
    try:
        before = server._review_timer
        before.cancel()

        def unreadable():
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(keys, "refresh", unreadable)
        with pytest.raises(PermissionError):
            server._review()
        assert server._review_timer is not before
        assert not server._review_timer.cancelled()
    finally:
        server.close()
