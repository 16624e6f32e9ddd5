"""HTTP clients for agents that are given one, as AReaL's are.

Invariants: a client is of one episode, so that none closes another's; the certificates, which take most of
the time that a client takes to be made, are read once in a process; no proxy is asked for the door.
"""

import importlib
import importlib.util
import ssl
from collections.abc import Callable
from functools import cache
from typing import Any

DOOR = "http://127.0.0.1"
PACKAGES = {"openai": "DefaultAsyncHttpxClient", "httpx": "AsyncClient", "httpx2": "AsyncClient"}
"""Where a client is looked for: what the installed `openai` takes goes first."""


def find_client() -> Callable[[], Any] | None:
    """What makes a client, which is a context manager; None where no such package is installed.

    Its requests have no time-out: an answer of the policy takes as long as it takes.
    """
    package = next((name for name in PACKAGES if importlib.util.find_spec(name)), None)
    if package is None:
        return None
    make: Callable[..., Any] = getattr(importlib.import_module(package), PACKAGES[package])
    return lambda: make(verify=_certificates(), timeout=None, mounts={DOOR: None})


@cache
def _certificates() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if importlib.util.find_spec("certifi"):  # a slim image has no certificates of its own
        context.load_verify_locations(importlib.import_module("certifi").where())
    return context
