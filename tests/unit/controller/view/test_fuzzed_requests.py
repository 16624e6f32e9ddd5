"""Requests of any kind: each is answered in words, none sees what it may not, and the run stays the same."""

import asyncio
import random
from hashlib import sha256

import pytest

from controller.view.door.access import ACTING, Access
from controller.view.shown_run import ShownRun
from controller.view.site import Site
from tests.support.shown_run import recorded

HOST, COOKIE = "127.0.0.1:8470", "staleflow_8470=secret"
NUMBERS = (
    "0", "1", "7", "-1", "1e9", "nan", "inf", "9" * 30, "0x10", "\u0661", "", "a", "..", "%00", "1/../..",
)  # fmt: skip
PIECES = (
    "api", "runs", "0", "1", "99999999999999999999", "moment", "why", "now", "ledger", "timeline", "groups",
    "samples", "metrics", "actions", "whatif", "pages", "main.js", "index.html", "..", "%2e%2e", "run.db", "",
    "uplot", "<script>", "\u0663", "\x00", "healthz",
)  # fmt: skip
KEYS = ("event", "second", "step", "seek", "begin", "end", "find", "token", "x")
VALUES = (*NUMBERS, "next", "last", "rollout", "*" * 300, "secret", "' OR 1=1 --", "<img src=x>")
BODIES = (
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 5_000, b'{"action": "pause"}',
    b'{"changes": {}, "at_s": "x"}', b'{"changes": {"reward.function": "os:system"}}',
    b'{"changes": [1]}', b"x" * 100_000, b'{"changes": 7}',
)  # fmt: skip
ANSWERS = {200, 202, 304, 307, 400, 401, 403, 404, 405, 409, 413}


def request(dice):
    """(method, path, query, headers, body), and whether the door may let it in."""
    path = "/" + "/".join(dice.choice(PIECES) for _ in range(dice.randint(0, 6)))
    if dice.random() < 0.6:
        page = dice.choice(("moment", "now", "ledger", "why", "timeline", "metrics", "samples"))
        one = dice.choice(
            (page, f"groups/{dice.choice(NUMBERS)}", f"samples/{dice.choice(NUMBERS)}/{dice.choice(NUMBERS)}")
        )
        path = f"/api/runs/{dice.choice(('0', '0', '0', *NUMBERS))}/{one}"
    query = "&".join(f"{dice.choice(KEYS)}={dice.choice(VALUES)}" for _ in range(dice.randint(0, 3)))
    method = dice.choice(("GET", "GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"))
    headers = {"host": HOST, "cookie": COOKIE}
    if dice.random() < 0.5:
        headers[ACTING] = "1"
    is_welcome = True
    for name, value in (
        ("host", "evil.example:8470"),
        ("cookie", "staleflow_8470=wrong"),
        ("origin", "http://evil.example"),
    ):
        if dice.random() < 0.1:
            headers[name] = value
            is_welcome &= (
                name == "origin"
            )  # a foreign page may look as little as it may act: it gets no cookie
    if "token=secret" in query.replace("token=secretx", ""):
        is_welcome |= "evil" not in headers["host"]
    return method, path, query, headers, dice.choice(BODIES) if method in ("POST", "PUT") else b"", is_welcome


async def answer(app, method, path, query, headers, body):
    sent = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8470),
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


def digests(run):
    return {
        file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(run.rglob("*")) if file.is_file()
    }


@pytest.mark.parametrize(
    "count", [400, pytest.param(10_000, marks=pytest.mark.thorough)], ids=["some", "ten thousand"]
)
def test_every_request_is_answered_and_the_run_stays_as_it_was(tmp_path, count):
    run = recorded(tmp_path / "run")
    before, dice = digests(run), random.Random(count)
    access = Access(host="127.0.0.1", port=8470, token="secret")
    app = Site([ShownRun(run)], access, order=None).app()

    async def ask_all():
        for number in range(count):
            *asked, is_welcome = request(dice)
            status = await answer(app, *asked)
            assert status in ANSWERS, (number, status, asked)
            if not is_welcome:
                assert status in (401, 403), (number, status, asked)

    asyncio.run(ask_all())
    assert digests(run) == before
