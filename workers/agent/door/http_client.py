"""HTTP clients for agent functions that take one, as AReaL's do.

Invariants: each episode has its own client, so none closes another's; certificates, which take most of the
time of making a client, are read once per process; requests to the door use no proxy.
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
"""Packages that provide a client; the one that the installed `openai` accepts comes first."""


def find_client() -> Callable[[], Any] | None:
    """A function that makes a client (a context manager); None if no such package can be imported.

    Its requests have no time-out, because an answer of the policy may take any time.
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
