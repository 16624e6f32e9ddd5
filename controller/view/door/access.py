"""Access control of the view: checks Host, token and Origin of each request before it is handled.

Invariants: a request without the token is refused; the Host header has to name this listener, against DNS
rebinding; a request that acts needs a header that no foreign page can send, and, if it has an Origin, one of
ours; tokens are compared in constant time; every answer forbids foreign scripts, frames and caching.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

TOKEN_BYTES = 32
MOST_BODY_BYTES = 64 << 10
HTTP_PORT = 80  # which a browser leaves out of Host and Origin
ACTING = "x-staleflow-act"  # a header that a page of another origin cannot set without being asked
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


class Asked(NamedTuple):
    """The parts of a request that are checked."""

    method: str
    query: str
    headers: Mapping[str, str]  # names in lower case


class Denied(NamedTuple):
    """A refusal of a request."""

    status: int
    reason: str


class Access:
    """The access rules of one listener."""

    def __init__(self, *, host: str, port: int, token: str = "") -> None:
        """`host`: what the listener is bound to; `token`: "" makes one."""
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self.cookie = f"staleflow_{port}"  # cookies do not tell ports apart
        shown = f"[{host}]" if ":" in host else host
        names = {shown, "127.0.0.1", "localhost", "[::1]"}
        self._name, self._tunnel = f"{shown}:{port}", f"ssh -L {port}:{shown}:{port} USER@THIS_MACHINE"
        at_port = {f"{name}:{port}" for name in names}
        self.hosts = frozenset(at_port | names if port == HTTP_PORT else at_port)
        self.origins = frozenset(f"http://{name}" for name in self.hosts)

    def objection(self, asked: Asked) -> Denied | None:
        """Why a request is refused; None if it may be answered."""
        host = asked.headers.get("host", "")
        if host not in self.hosts:
            told = f"This is {self._name}, and not {host[:80]!r}."
            return Denied(403, f"{told} Through a tunnel, have its port on both sides: {self._tunnel}.")
        if not self._has_token(asked):
            return Denied(401, "Open the link with its token, which the view has printed when it began.")
        if asked.method in ("GET", "HEAD"):
            return None
        origin = asked.headers.get("origin")
        if origin is not None and origin not in self.origins:
            return Denied(403, f"A page of {origin[:80]!r} may not act on a run.")
        if ACTING not in asked.headers:
            return Denied(403, f"What acts needs the header {ACTING}.")
        if not asked.headers.get("content-length", "0").isdecimal():
            return Denied(400, "The length of the body is no number.")
        if int(asked.headers.get("content-length", "0")) > MOST_BODY_BYTES:
            return Denied(413, f"More than {MOST_BODY_BYTES} bytes are no order.")
        return None

    def brings_token(self, asked: Asked) -> bool:
        """Whether the URL has the token, which then becomes a cookie."""
        return self._is_token(parse_qs(asked.query).get("token", [""])[0])

    def set_cookie(self) -> str:
        """The value of the header Set-Cookie that makes a browser send the token with each request."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _has_token(self, asked: Asked) -> bool:
        scheme, _, told = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(told):
            return True
        told_before = _cookies(asked.headers.get("cookie", ""), self.cookie)
        return any(map(self._is_token, told_before)) or self.brings_token(asked)

    def _is_token(self, told: str) -> bool:
        return secrets.compare_digest(told.encode(errors="replace"), self.token.encode())


def _cookies(header: str, name: str) -> list[str]:
    """Values under this name, whatever cookies of other programs on this host look like."""
    found = (cookie.strip(" \t").partition("=") for cookie in header.split(";"))
    return [value for key, _, value in found if key == name]
