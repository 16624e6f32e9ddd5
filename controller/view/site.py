"""The web application of the view: the answer at each address.

Invariants: nothing is answered that `Access` objects to; nothing a browser names is a path of a file: pages
are known beforehand, runs are numbers of the list; work on a journal is done in a thread, so that no answer
holds up another; what fails is told in one sentence, with its status; what many ask at once is made once.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.view.door.access import HEADERS, MOST_BODY_BYTES, Access, Asked
from controller.view.door.shared import Made, SharedAnswers
from controller.view.door.viewers import Viewers
from controller.view.over_time import ages, starts
from controller.view.past.replayed_core import StillReading
from controller.view.prometheus import Shown, exposition, labels_of
from controller.view.shown_run import ShownRun
from controller.view.stacks import stacks_of
from controller.view.whatif import BUILT_IN, WhatIf
from protocol.errors import ConfigError, RunError, StaleFlowError
from protocol.files import is_file

PAGES = Path(__file__).parent / "pages"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
NO_NUMBER = 1 << 53  # of a group or a step: messages have smaller ones
MOST_DIGITS = 15  # of a number in an address; all of so many are smaller
PACKED_BYTES = 1_000  # an answer from so many on: what a fleet does is a tenth of its size then
PATIENCE_S = 0.3  # of reading a journal, before the page is told how far it is
MOMENTS = ("event", "second", "step")
Order = Callable[[str, str, str, str], Awaitable[str]]
"""`order(run, action, argument, why)` gives an order to a live run and returns its answer."""


class Number(Convertor[int]):
    """A number in an address; NO_NUMBER for one with so many digits that nothing has it."""

    regex = "[0-9]+"

    def convert(self, value: str) -> int:
        """Leading zeros count as digits, too."""
        return int(value) if len(value) <= MOST_DIGITS else NO_NUMBER


register_url_convertor("number", Number())


class Site:
    """All addresses of the view."""

    def __init__(self, runs: list[ShownRun], access: Access, *, order: Order | None) -> None:
        """`order`: None for a view that may only look."""
        self._runs, self._access, self._order = runs, access, order
        self._names = labels_of([run.path.resolve() for run in runs])
        self._whatif, self._shared = WhatIf(), SharedAnswers()
        self._one_at_a_time = asyncio.Lock()
        self._files = {
            str(file.relative_to(PAGES)): file
            for file in sorted(PAGES.rglob("*"))
            if file.suffix in KINDS and is_file(file)
        }

    def app(self) -> ASGIApp:
        """The application for an ASGI server."""
        one = "/api/runs/{run:number}"
        routes = [
            Route("/", self._page),
            Route("/pages/{name:path}", self._page),
            Route("/api/runs", self._list),
            Route(
                f"{one}/moment",
                self._of(
                    lambda run, ask: run.moment(
                        _at(ask), ask.query_params.get("seek", ""), patience_s=PATIENCE_S
                    )
                ),
            ),
            Route(f"{one}/why", self._of(lambda run, ask: run.why(_at(ask), patience_s=PATIENCE_S))),
            Route(f"{one}/now", self._of(_now)),
            Route(f"{one}/ledger", self._of(lambda run, ask: run.ledger(_at(ask), patience_s=PATIENCE_S))),
            Route(f"{one}/timeline", self._of(_timeline)),
            Route(f"{one}/starts", self._of(lambda run, ask: starts(run, _at(ask), patience_s=PATIENCE_S))),
            Route(f"{one}/ages", self._of(lambda run, ask: ages(run))),
            Route(
                f"{one}/groups/{{group:number}}",
                self._of(
                    lambda run, ask: run.group(ask.path_params["group"], _at(ask), patience_s=PATIENCE_S)
                ),
            ),
            Route(f"{one}/samples", self._of(lambda run, ask: run.samples())),
            Route(f"{one}/samples/found", self._of(lambda run, ask: run.find_samples(ask.query_params))),
            Route(
                f"{one}/samples/{{step:number}}/{{group:number}}",
                self._of(lambda run, ask: run.sample(ask.path_params["step"], ask.path_params["group"])),
            ),
            Route(f"{one}/metrics", self._of(lambda run, ask: run.metrics())),
            Route(f"{one}/actions", self._act, methods=["POST"]),
            Route(f"{one}/orders", self._of(lambda run, ask: run.orders())),
            Route(f"{one}/stacks", self._stacks, methods=["POST"]),
            Route(f"{one}/whatif", self._predict, methods=["POST"]),
            Route("/api/whatif", self._prediction, methods=["GET", "DELETE"]),
            Route("/metrics", self._prometheus),
        ]
        packed = GZipMiddleware(Starlette(routes=routes), minimum_size=PACKED_BYTES, compresslevel=1)
        return Guarded(packed, self._access)

    def _page(self, asked: Request) -> Response:
        name = asked.path_params.get("name", "index.html")
        file = self._files.get(name)
        if file is None:
            return PlainTextResponse("There is no such page.", 404)
        return Response(file.read_bytes(), media_type=KINDS[file.suffix])

    async def _list(self, asked: Request) -> Response:
        def look() -> dict[str, Any]:
            named = zip(self._runs, self._names, strict=True)
            facts = [_facts(run) | {"name": name} for run, name in named]
            return {"runs": facts, "may_act": self._order is not None}

        return await self._answer(asked, lambda: _made(look))

    async def _answer(self, asked: Request, make: Callable[[], Awaitable[Made]]) -> Response:
        """What `make` makes of it, or has just made of the same for somebody else."""
        made = await self._shared.get(f"{asked.url.path}?{asked.url.query}", make)
        return Response(made.body, made.status, media_type="application/json")

    def _of(
        self, show: Callable[[ShownRun, Request], dict[str, Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(asked: Request) -> Response:
            number = asked.path_params["run"]
            if number >= len(self._runs):
                return _error(404, f"There is no run {number} here.")
            if any(value >= NO_NUMBER for value in asked.path_params.values()):
                return _error(404, "No group and no step has so large a number.")
            run = self._runs[number]
            return await self._answer(asked, lambda: _made(lambda: show(run, asked), said=run.said))

        return answer

    async def _act(self, asked: Request) -> Response:
        run, refused = self._to_act_on(asked)
        if run is None or self._order is None:
            return refused
        try:
            order = json.loads(await asked.body())
            words = [str(order.get(name, "")) for name in ("action", "argument", "why")]
            "".join(words).encode()  # half a character is no text, and no message has it
        except (ValueError, AttributeError, RecursionError):
            return _error(400, "An order is a JSON object with action, argument and why.")
        try:
            return _answered({"answer": await self._order(str(run.path), *words)})
        except StaleFlowError as error:
            return _error(409, str(error))

    async def _stacks(self, asked: Request) -> Response:
        """Where a worker stands, one question after the other."""
        run, refused = self._to_act_on(asked)
        if run is None:
            return refused
        try:
            worker = str(json.loads(await asked.body())["worker"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return _error(400, "Expected a JSON object with the name of a worker, or `controller`.")
        try:
            async with self._one_at_a_time:
                return _answered({"stacks": await to_thread.run_sync(stacks_of, run.path, worker)})
        except StaleFlowError as error:
            return _error(409, str(error))

    def _to_act_on(self, asked: Request) -> tuple[ShownRun | None, Response]:
        """The run that something is to be done to; None, and why not."""
        number = asked.path_params["run"]
        if number >= len(self._runs):
            return None, _error(404, f"There is no run {number} here.")
        if self._order is None:
            return None, _error(403, "This view may only look (--read-only).")
        return self._runs[number], Response()

    async def _predict(self, asked: Request) -> Response:
        number = asked.path_params["run"]
        if number >= len(self._runs):
            return _error(404, f"There is no run {number} here.")
        try:
            wanted = json.loads(await asked.body())
            changes, at_s = dict(wanted["changes"]), wanted.get("at_s")
            at_s = None if at_s is None else float(at_s)
            if at_s is not None and not math.isfinite(at_s):
                raise ValueError
        except (ValueError, OverflowError, AttributeError, KeyError, TypeError, RecursionError):
            return _error(400, "Expected a JSON object with changes, and at_s: seconds of the run, or null.")
        try:
            return _answered(await self._whatif.begin(self._runs[number].path, changes, at_s))
        except StaleFlowError as error:
            return _error(409, str(error))

    async def _prediction(self, asked: Request) -> Response:
        cancels = asked.method == "DELETE"
        state = await self._whatif.cancel() if cancels else self._whatif.state()
        return _answered(state | {"built_in": BUILT_IN})

    async def _prometheus(self, asked: Request) -> Response:
        def look() -> str:
            return exposition(map(_figures, self._runs, self._names))

        return PlainTextResponse(await to_thread.run_sync(look))


class Guarded:
    """An application that is asked only what the door lets through."""

    def __init__(self, inner: ASGIApp, access: Access) -> None:
        self._inner, self._access, self._viewers = inner, access, Viewers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        asked = Asked(scope["method"], scope["query_string"].decode("latin-1"), headers)
        denied = self._access.objection(asked)
        if denied is not None:
            answer = PlainTextResponse(denied.reason, denied.status, headers=HEADERS)
            await answer(scope, receive, send)
            return
        if scope["path"].startswith("/api/"):
            denied = self._viewers.objection(headers, time.monotonic())
            if denied is not None:
                refused = _error(denied.status, denied.reason)
                await refused(scope, receive, _with_headers(send, HEADERS))
                return
        more = dict(HEADERS)
        if self._access.brings_token(asked):
            more["set-cookie"] = self._access.set_cookie()
        await self._inner(scope, _bounded(receive), _with_headers(send, more))


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in headers.items()]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending


def _bounded(receive: Receive) -> Receive:
    """A body is cut off where it is longer than any order: no length was told, or a wrong one."""
    left = MOST_BODY_BYTES

    async def receiving() -> Any:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")[:left]
            left -= len(body)
            message = {**message, "body": body}
            if not left:
                message["more_body"] = False
        return message

    return receiving


def _error(status: int, text: str) -> Response:
    return _answered({"error": text}, status)


def _answered(found: dict[str, Any], status: int = 200) -> Response:
    return Response(_json(found).body, status, media_type="application/json")


def _figures(run: ShownRun, name: str) -> Shown:
    """Of one run; one that cannot be read keeps nobody from the others."""
    try:
        return name, run.state(), run.now({})
    except StaleFlowError:
        return name, run.state(), None


def _facts(run: ShownRun) -> dict[str, Any]:
    """Of one run; one that cannot be read keeps nobody from the others."""
    try:
        return run.facts()
    except StaleFlowError as error:
        return {"name": run.name, "path": str(run.path), "state": run.state(), "trouble": str(error)}


def _now(run: ShownRun, asked: Request) -> dict[str, Any]:
    words = {name: asked.query_params.get(name, "") for name in ("find", "who")}
    return run.now(_at(asked), patience_s=PATIENCE_S, **words)


def _timeline(run: ShownRun, asked: Request) -> dict[str, Any]:
    """Raises: RunError if begin and end are no seconds."""
    words = [asked.query_params.get(name) for name in ("begin", "end")]
    try:
        begin, end = [None if word is None else float(word) for word in words]
        if any(second is not None and not 0 <= second < 1e12 for second in (begin, end)):
            raise ValueError
    except ValueError:
        raise RunError(f"{words} is no span of time: expected seconds of the run, from 0.") from None
    return run.timeline(begin, end, asked.query_params.get("find", ""))


def _at(asked: Request) -> dict[str, str]:
    """The moment that was asked for; {} for the newest."""
    return {name: asked.query_params[name] for name in MOMENTS if name in asked.query_params}


async def _made(look: Callable[[], dict[str, Any]], *, said: Callable[[], dict[str, Any]] = dict) -> Made:
    """What `look` gives; while a journal is being read for it, how far that is, and what else is `said`."""

    def make() -> Made:
        try:
            return _json(look())
        except StillReading as way:
            reading = {"number": way.number, "last": way.last} | ({"of": way.of} if way.of else {})
            return _json({"reading": reading, "said": said()}, 202)

    try:
        return await to_thread.run_sync(make)
    except ConfigError as error:
        return _json({"error": str(error)}, 400)
    except StaleFlowError as error:
        return _json({"error": str(error)}, 404)


def _json(found: dict[str, Any], status: int = 200) -> Made:
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Made(status, text.encode(errors="backslashreplace"))  # half a character is an escape in JSON, too
