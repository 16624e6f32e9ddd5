"""Who gives an order is named, also where the system does not know him."""

import getpass
import os
import socket

from controller.view.orders import operator


def test_a_user_without_a_name_gives_orders_by_number(monkeypatch):
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    assert operator() == f"ann@{socket.gethostname()}"
    monkeypatch.setattr(getpass, "getuser", unknown)
    assert operator() == f"{os.getuid()}@{socket.gethostname()}"
