"""HTTP clients for agents that are given one, as AReaL's are.

Invariants: a client is of one episode, so that none closes another's; the certificates, which take most of
the time that a client takes to be made, are read once in a process; no proxy is asked for the door.
"""

import importlib
import importlib.util
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

DOOR = "http://127.0.0.1"
PACKAGES = {"openai": "DefaultAsyncHttpxClient", "httpx": "AsyncClient", "httpx2": "AsyncClient"}
"""Where a client is looked for: what the installed `openai` takes goes first."""


def find_client() -> Callable[[], Any] | None:
    """What makes a client, which is a context manager; None where no package that has one can be imported.

    Its requests have no time-out: an answer of the policy takes as long as it takes.
    """
    for package, name in PACKAGES.items():
        with suppress(ImportError, AttributeError):  # an old or a broken one is none
            make: Callable[..., Any] = getattr(importlib.import_module(package), name)
            return partial(_client, make)
    return None


def _client(make: Callable[..., Any]) -> Any:
    return make(verify=_certificates(), timeout=None, mounts={DOOR: None})


@cache
def _certificates() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if importlib.util.find_spec("certifi"):  # a slim image has no certificates of its own
        context.load_verify_locations(importlib.import_module("certifi").where())
    return context
