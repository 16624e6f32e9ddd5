"""The HTTP application of the door.

Invariants: every response other than a completion is an error in OpenAI's format, and says that a retry is of
no use; once its text is encoded, a waiting client receives bytes regularly, so that none times out; a client
that leaves cancels nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from workers.agent.door.chat_request import ChatRequest
from workers.agent.door.completion import CREATED, DoorAnswer, events, whole
from workers.agent.door.desk import DoorDesk, DoorQuestion
from workers.agent.door.keys import episode_over
from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.responses_answer import response_events, whole_response
from workers.agent.policy import KEYED, MODEL, UNTRAINED

MAX_BODY_BYTES = 16 << 20
BODY_LIMIT_S = 30.0
"""Time limit for a body to arrive; clients are on this machine."""
SILENCE_S = 0.5
"""Longest silence towards a waiting client, shorter than any realistic time-out."""
HEADERS = {"x-should-retry": "false"}

ReadRequest = Callable[[bytes], ChatRequest]


class EpisodeLost(Exception):
    """The episode ended while its client waited: the connection is cut, so that the client asks again."""


def make_site(desk: DoorDesk, readers: Mapping[str, ReadRequest]) -> Starlette:
    """The application. `readers`: by path, how a request is read from a body, or DoorRefusal raised."""

    def episode_of(request: Request) -> int:
        """The episode of the key in the path, or in the header. Raises: DoorRefusal."""
        if (key := request.path_params.get("key")) is not None:
            return desk.keys.number_of_key(key)
        return desk.keys.number_of(request.headers.get("authorization", ""))

    async def ask(read: ReadRequest, request: Request) -> Response:
        number = episode_of(request)
        body = await _body(request)
        episode_of(request)  # it may have ended meanwhile
        is_untrained = request.url.path.startswith(UNTRAINED)
        question = desk.take(
            number, body, replace(read(body), is_untrained=is_untrained), is_retry=_is_retry(request),
            idempotency_key=request.headers.get("idempotency-key", ""),
        )  # fmt: skip
        return await _answer(question)

    async def models(request: Request) -> Response:
        episode_of(request)
        model = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "staleflow"}
        name = request.path_params.get("name")
        if name not in (None, MODEL):
            raise DoorRefusal(
                404, f"There is no model {name!r:.80}; expected {MODEL!r}.", code="model_not_found"
            )
        return JSONResponse(model if name else {"object": "list", "data": [model]})

    return Starlette(
        routes=[
            route
            for kind in ("", UNTRAINED)
            for root in (f"{kind}/v1", f"{kind}{KEYED}/{{key}}", f"{kind}{KEYED}/{{key}}/v1")
            for route in (
                *(
                    Route(f"{root}/{path}", partial(ask, read), methods=["POST"])
                    for path, read in readers.items()
                ),
                Route(f"{root}/models", models),
                Route(f"{root}/models/{{name:path}}", models),
            )
        ],
        exception_handlers={DoorRefusal: _refused, HTTPException: _no_such_place, ClientDisconnect: _nobody},
    )


def _is_retry(request: Request) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count[:9]) > 0


async def _body(request: Request) -> bytes:
    """Raises: DoorRefusal if it is too large or too slow; ClientDisconnect."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise DoorRefusal(
                        413, f"The body has more than {MAX_BODY_BYTES} bytes, the most that is read."
                    )
    except TimeoutError:
        raise DoorRefusal(
            408, f"The body was not complete after {BODY_LIMIT_S:g} s. Send all of it, with its length."
        ) from None
    return bytes(body)


async def _answer(question: DoorQuestion) -> Response:
    """The response to a question. Raises: DoorRefusal if it is refused, or the episode ends first."""
    await question.placed.wait()  # a response that has begun cannot become a refusal
    if question.refusal is not None:
        raise question.refusal
    kind = "text/event-stream" if question.request.is_stream else "application/json"
    if await _wait(question):
        answer = question.answer.result()
        if answer is None:
            raise episode_over()
        question.is_delivered = True
        return Response(_written(question, answer), media_type=kind)
    return StreamingResponse(_slowly(question), media_type=kind)


async def _slowly(question: DoorQuestion) -> AsyncIterator[bytes]:
    """Fillers that clients skip until the answer is there: blanks before JSON, comments before events."""
    silence = b":\n\n" if question.request.is_stream else b" "
    yield silence
    while not await _wait(question):
        yield silence
    answer = question.answer.result()
    if answer is None:
        raise EpisodeLost
    yield _written(question, answer)
    question.is_delivered = True


async def _wait(question: DoorQuestion) -> bool:
    """Whether the answer came within SILENCE_S."""
    question.listeners += 1
    try:
        await asyncio.wait({question.answer}, timeout=SILENCE_S)
    finally:
        question.listeners -= 1
    return question.answer.done()


def _written(question: DoorQuestion, answer: DoorAnswer) -> bytes:
    request = question.request
    if request.response is not None:
        write = response_events if request.is_stream else whole_response
        return write(answer, request.response)
    return events(answer, has_usage=request.has_usage) if request.is_stream else whole(answer)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, DoorRefusal)
    headers = HEADERS | ({"connection": "close"} if error.status in (408, 413) else {})
    return JSONResponse(error.body, error.status, headers=headers)


async def _no_such_place(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        text = f"{request.method} is not possible at {request.url.path}; expected another method."
    else:
        places = "/v1/chat/completions, /v1/responses or /v1/models"
        text = f"There is nothing at {request.url.path:.80}; expected {places}."
    return await _refused(request, DoorRefusal(error.status_code, text, code="not_found"))


async def _nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client is gone
