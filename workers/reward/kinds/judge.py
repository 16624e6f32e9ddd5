"""The reward `judge`: a model behind an OpenAI-compatible endpoint grades the response with a number.

Invariants: only a number of the judge's within its range becomes a reward; after any other answer, or none,
the request is repeated, and then a failure of the endpoint is raised; text of a response appears in the
prompt and nowhere else.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from functools import partial
from math import fsum
from typing import Any

import httpx2

from protocol.rewards.kinds import FIELD, Criterion, JudgeReward, find
from workers.reward.api_key import api_key
from workers.reward.chat_requests import MAX_SHOWN, NoAddress, Trouble, ask, client
from workers.reward.kinds.interface import Place, Unscorable
from workers.reward.kinds.judge_cache import JudgeCache, digest_of
from workers.reward.together import all_of

MAX_BACKOFF_S = 60.0


def make(options: JudgeReward, place: Place) -> "Judge":
    """An async callable for one response. Raises: ConfigError if the API key is malformed."""
    return Judge(options, place)


class Judge:
    """One endpoint, with this process's connections."""

    def __init__(self, options: JudgeReward, place: Place) -> None:
        self._options = options
        self._url = f"{options.base_url.rstrip('/')}/chat/completions"
        self._number = re.compile(options.number)
        self._key = api_key(options.api_key_env)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._cache = JudgeCache(place.run_dir) if options.cache else None
        self._client: httpx2.AsyncClient | None = None
        self._asking: dict[str, asyncio.Task[float]] = {}  # by digest: equal requests are sent once

    async def close(self) -> None:
        """Close connections and cache."""
        for asking in self._asking.values():
            asking.cancel()
        if self._cache is not None:
            self._cache.close()
        if self._client is not None:
            await self._client.aclose()

    async def __call__(self, completion: str, prompt: Any, **columns: Any) -> float:
        """The judge's number, scaled to 0 to 1. Raises: Unscorable."""
        options = self._options
        fields = columns | {"prompt": prompt, "completion": completion, "question": as_text(prompt)}
        rubric = options.rubric or (Criterion(criterion="-"),)
        asked = [self._grade(fill(options.prompt, fields | {"criterion": one.criterion})) for one in rubric]
        grades = await all_of(asked)
        weighted = fsum(one.weight * grade for one, grade in zip(rubric, grades, strict=True))
        return weighted / fsum(one.weight for one in rubric)

    async def _grade(self, prompt: str) -> float:
        options = self._options
        body = {
            "model": options.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            **options.body,
        }
        number = await self._ask(body) if self._cache is None else await self._known(self._cache, body)
        return (number - options.lowest) / (options.highest - options.lowest)

    async def _known(self, cache: JudgeCache, body: Mapping[str, Any]) -> float:
        """The judge's number, from the cache if it has it. Raises: as `_ask`."""
        options = self._options
        digest = digest_of(self._url, body, options.number)
        number = cache.get(digest)
        if number is not None and options.lowest <= number <= options.highest:
            return number
        if (asking := self._asking.get(digest)) is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask_and_keep(cache, digest, body))
            asking.add_done_callback(partial(self._answered, digest))
        return await asyncio.shield(asking)  # others wait for it, too

    def _answered(self, digest: str, asking: asyncio.Task[float]) -> None:
        del self._asking[digest]
        if not asking.cancelled():
            asking.exception()  # nobody need wait for it any more

    async def _ask_and_keep(self, cache: JudgeCache, digest: str, body: Mapping[str, Any]) -> float:
        number = await self._ask(body)
        cache.put(digest, number)
        return number

    async def _ask(self, body: Mapping[str, Any]) -> float:
        """The judge's number. Raises: Unscorable after the last attempt, or if no retry can help."""
        for attempt in range(self._options.retries + 1):
            try:
                async with self._slots:
                    return self._number_in(await self._answer(body))
            except Trouble as trouble:
                last = trouble
            if attempt < self._options.retries:
                pause_s = self._options.backoff_s * 2**attempt if last.wait_s is None else last.wait_s
                await asyncio.sleep(min(pause_s, MAX_BACKOFF_S))
        raise Unscorable(
            f"The judge at {self._url} gave no number in {self._options.retries + 1} requests, the last time "
            f"because {last}. Nothing was made a reward of it. Look at the endpoint, or raise `retries` of "
            "this reward."
        )

    async def _answer(self, body: Mapping[str, Any]) -> str:
        """The text of the judge's answer. Raises: Trouble, Unscorable."""
        if self._client is None:
            limits = httpx2.Limits(max_connections=self._options.concurrency)
            self._client = client(limits=limits)
        within_s = self._options.request_s
        try:
            answer, shown = await ask(
                self._client, self._url, body, self._key, within_s=within_s, limit="request_s"
            )
        except NoAddress as error:
            raise Unscorable(f"The judge at {self._url} cannot be asked: {error} Check `base_url`.") from None
        if answer.status_code != 200:
            hint = f" The key is read from {self._options.api_key_env}." if answer.status_code == 401 else ""
            raise Unscorable(
                f"The judge at {self._url} refuses the request: {shown}. Check `base_url`, `model` and the "
                f"key of this reward.{hint}"
            )
        try:
            choice = answer.json()["choices"][0]
            text, ending = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Trouble(f"{shown}, which is no chat completion") from None
        if ending == "length":
            raise Trouble("its answer was cut off; raise `max_tokens` of this reward")
        if not isinstance(text, str):
            raise Trouble(f"the answer's content is {type(text).__name__}, and no text")
        return text

    def _number_in(self, text: str) -> float:
        """The last number in the judge's answer. Raises: Trouble."""
        options, matches = self._options, self._number.finditer(text)
        found = [match[1] for match in matches if match[1] is not None]
        shown = f"{' '.join(text.split())[-MAX_SHOWN:]!r}"
        if not found:
            raise Trouble(f"{shown} has no number as `number` describes it")
        try:
            number = float(found[-1])
        except ValueError:
            raise Trouble(f"{found[-1]!r:.80} in {shown} is no number") from None
        if not options.lowest <= number <= options.highest:
            raise Trouble(f"{number:g} is not from {options.lowest:g} to {options.highest:g}")
        return number


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """The template with its fields filled in once: braces within their values are left alone.

    Raises: Unscorable for a field that is no column of the row.
    """

    def value(place: re.Match[str]) -> str:
        found = fields.get(place[1]) if place[1] in fields else find(fields, place[1])
        if found is None:
            raise Unscorable(
                f"The judge's prompt has {place[0]}, and the row has no such column, only "
                f"{', '.join(fields)}. Rename it in `prompt` of this reward."
            )
        return as_text(found)

    return FIELD.sub(value, template)


def as_text(value: Any) -> str:
    """Text as it is; chat messages in sequence, with their roles and tool calls."""
    if isinstance(value, list) and all(isinstance(one, Mapping) and "content" in one for one in value):
        return "\n\n".join(f"{one.get('role', 'user')}: {_said(one)}" for one in value)
    return str(value)


def _said(message: Mapping[str, Any]) -> str:
    """The content of a message, and its tool calls, a line each."""
    content, calls = message["content"] or "", message.get("tool_calls") or ()
    return "\n".join([*([as_text(content)] if content or not calls else []), *map(_called, calls)])


def _called(call: Any) -> str:
    """A tool call as text, such as `add({"a": 1})`; as it is where a data row has it in another form."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return str(call)
    arguments = function.get("arguments", "")
    told = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f"{function.get('name', '')}({told})"
