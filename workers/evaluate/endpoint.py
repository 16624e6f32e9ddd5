"""Evaluates a policy behind an OpenAI-compatible endpoint: single responses, and episodes of an agent.

Invariants: a request that the endpoint cannot take ends the attempt with an error, and never becomes a
reward; a request that failed for a passing reason is repeated; an episode that was in a process when it died
is tried again alone.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from protocol.errors import ConfigError
from protocol.settings import SamplingSettings, WorkerSettings
from workers.agent.child import NO_DOOR, AgentChild, Ended, FailureKind
from workers.agent.door.chat_request import run_fields
from workers.agent.messages import TOO_DEEP, check_answer, check_messages
from workers.agent.pool import NO_TRAINED_TURN, AgentPool
from workers.evaluate.checkpoint import environment_seed, worth
from workers.evaluate.played import Lost, Played
from workers.evaluate.told_conversations import ToldConversations
from workers.reward.chat_requests import NoAddress, Trouble, ask, client
from workers.reward.chat_rows import template_arguments

RETRIES = 5
BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
REQUEST_S = 600.0
NOT_OPENAIS = ("top_k", "min_p", "min_tokens")
"""Fields that OpenAI's API lacks; they are sent if they are set, for servers that know them.

So is a row's own `chat_template_kwargs`.
"""
NO_TOKENS = "policy.generate needs tokens, which an endpoint does not take: use policy.chat, or a checkpoint."
NO_REWARD = (
    "The agent returned no reward, and asked the endpoint itself: what was answered is not known here, and "
    "cannot be scored. Return a number, ask with policy.chat, or evaluate a checkpoint."
)
Talk = Sequence[Mapping[str, Any]]


class EndpointAnswer(NamedTuple):
    """An answer of the endpoint."""

    message: dict[str, Any]
    ending: str
    tokens: int


class Endpoint:
    """One endpoint and model, within `async with`."""

    def __init__(self, base_url: str, model: str, key: str, sampling: SamplingSettings) -> None:
        self.base_url, self.key = base_url.rstrip("/"), key
        self._body: dict[str, Any] = {
            "model": model, "temperature": sampling.temperature, "top_p": sampling.top_p,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **{name: value for name in NOT_OPENAIS if (value := getattr(sampling, name))},
        }  # fmt: skip

    async def __aenter__(self) -> Self:
        self._client = client()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def chat(
        self, messages: Talk, tools: Any, most: int, *, template_kwargs: Mapping[str, Any] | None = None
    ) -> EndpointAnswer:
        """The endpoint's answer, of at most `most` tokens; `template_kwargs`: for the server's chat template.

        Raises: Lost if it gives none; ConfigError if it refuses every request.
        """
        body = (
            self._body
            | {"messages": list(messages), "max_tokens": most}
            | ({"tools": tools} if tools else {})
            | ({"chat_template_kwargs": template_kwargs} if template_kwargs else {})
        )
        last = Trouble("")
        for attempt in range(RETRIES + 1):
            if attempt:
                pause_s = BACKOFF_S * 2**attempt if last.wait_s is None else last.wait_s
                await asyncio.sleep(min(pause_s, MAX_BACKOFF_S))
            try:
                return await self._ask(body)
            except Trouble as trouble:
                last = trouble
        raise Lost(f"{self.base_url} gave no answer in {RETRIES + 1} requests, the last time because {last}.")

    async def _ask(self, body: Mapping[str, Any]) -> EndpointAnswer:
        """Raises: Trouble, Lost, ConfigError."""
        url = f"{self.base_url}/chat/completions"
        try:
            answer, shown = await ask(self._client, url, body, self.key, within_s=REQUEST_S)
        except NoAddress as error:
            raise ConfigError(f"--base-url {self.base_url} cannot be asked: {error}") from None
        if answer.status_code in (401, 403, 404):
            raise ConfigError(
                f"{self.base_url} refuses every request: {shown}. Check --base-url, --model and "
                "OPENAI_API_KEY."
            )
        if answer.status_code != 200:
            raise Lost(f"{self.base_url} refuses the request: {shown}.")
        try:
            told = answer.json()
            choice = told["choices"][0]
            message = check_answer(choice["message"])
            usage = told.get("usage") or {}
            ending = "length" if choice.get("finish_reason") == "length" else "stop"
            return EndpointAnswer(message, ending, max(0, int(usage.get("completion_tokens") or 0)))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            raise Trouble(f"{shown}, which is no chat completion") from None


class EndpointResponses:
    """Plays single responses to prompts."""

    def __init__(self, settings: WorkerSettings, endpoint: Endpoint) -> None:
        self._settings, self._endpoint = settings, endpoint

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """Raises: Lost."""
        del number, sample
        prompt = row.get("prompt")
        talk = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            messages = check_messages(talk)
            tools, kwargs = template_arguments(row)
        except ValueError as error:
            raise Lost(f"The row has no prompt that an endpoint takes: {error}") from None
        most = self._settings.rollout.max_response_tokens
        answer = await self._endpoint.chat(messages, tools, most, template_kwargs=kwargs)
        text = str(answer.message["content"])
        shown = [*messages, answer.message]
        asked = messages[-1]["content"]
        return Played(None, asked, [], text, [], answer.ending, answer.tokens, 1, shown)


class _ProcessDied(Lost):
    """An attempt whose process has died, perhaps because of another episode."""


class _Budget(NamedTuple):
    """What a turn may have."""

    most: int  # tokens; below 1: none
    limit: str  # that bounds them, as in EpisodeEnded; "": the agent's own max_tokens


class _Playing:
    """An episode that runs in a process."""

    def __init__(self, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.talks: dict[int, list[Any]] = {}  # trained conversations, each up to its newest answer
        self.said: dict[int, list[str]] = defaultdict(list)  # the policy's turns in each of them
        self.template_kwargs = template_kwargs  # of its row
        self.conversations = ToldConversations()
        self.turns = self.tokens = 0  # of all conversations
        self.trained_tokens = 0
        self.open = self.promised = 0  # open requests, and the tokens that they may have
        self.awaited_s = 0.0  # seconds in which requests that were answered were open, each counted once
        self.counted_at = 0.0  # to which time they are counted, while one is open
        self.cut_by = ""  # the limit that cut the newest trained turn
        self.tasks: set[asyncio.Task[None]] = set()

    def told(self, conversation: int, messages: Talk, answer: EndpointAnswer, *, limit: str) -> None:
        """Note an answer in a trained conversation; `limit`: which one bounded it."""
        self.talks[conversation] = [*messages, answer.message]
        self.said[conversation].append(str(answer.message["content"]))
        self.trained_tokens += answer.tokens
        self.cut_by = limit if answer.ending == "length" else ""

    @property
    def first(self) -> tuple[list[Any], list[str]]:
        """The messages of the first trained conversation, and the policy's turns; empty before an answer."""
        number = min(self.talks, default=0)
        return self.talks.get(number, []), self.said[number]


class EndpointEpisodes:
    """Plays episodes of rows, within `async with`. Listens to the processes of the agent."""

    def __init__(self, settings: WorkerSettings, endpoint: Endpoint) -> None:
        self._settings, self._endpoint = settings, endpoint
        self._playing: dict[int, _Playing] = {}
        self._count = 0
        self._pool = AgentPool(
            settings.agent,
            self,
            settings.import_paths,
            request_kwargs=run_fields(settings),
            is_elsewhere=True,
        )

    async def __aenter__(self) -> Self:
        """Raises: ConfigError, RunError, in a group, if the agent cannot be started."""
        await self._pool.__aenter__()
        try:
            await self._pool.start()
        except BaseException as error:
            await self._pool.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """One episode. Raises: Lost after `agent.retries` retries."""
        del sample
        last, is_alone = "", self._settings.agent.isolation == "process"
        for _ in range(self._settings.agent.retries + 1):
            try:
                return await self._try(number, row, is_alone=is_alone)
            except Lost as error:
                last, is_alone = str(error), is_alone or isinstance(error, _ProcessDied)
        raise Lost(last)

    async def _try(self, row_number: int, row: Mapping[str, Any], *, is_alone: bool) -> Played:
        agent = self._settings.agent
        child = await self._pool.place(is_alone=is_alone)
        self._count += 1
        number, playing = self._count, _Playing(row.get("chat_template_kwargs"))
        self._playing[number] = playing
        seed = environment_seed(self._settings.seed, row_number)
        has_door = agent.has_door or child.asks_at_door
        door = (self._endpoint.base_url, self._endpoint.key or "none") if has_door else NO_DOOR
        child.begin(number, seed, json.dumps(row).encode(), door)
        if has_door:
            child.count(number, 0)  # its turns are between its client and the endpoint
        try:
            ended = await self._end_of(playing, has_door=has_door)
        finally:
            del self._playing[number]
            child.cancel(number)
            self._pool.answered(child)
            for task in playing.tasks:
                task.cancel()
        if not playing.talks and not has_door:
            raise Lost(NO_TRAINED_TURN)
        if not playing.talks and ended.reward is None:
            raise Lost(NO_REWARD)
        return self._played(playing, ended)

    async def _end_of(self, playing: _Playing, *, has_door: bool) -> Ended:
        """How an episode has ended; the time of answered requests counts only at the door. Raises: Lost."""
        agent, clock = self._settings.agent, asyncio.get_running_loop().time
        limit_s = agent.start_timeout_s + agent.episode_timeout_s + REQUEST_S
        until = clock() + limit_s
        while not playing.ended.done():
            if (left_s := until + playing.awaited_s - clock()) <= 0:
                answers = "at the door the endpoint's answers count, too" if has_door else "without answers"
                raise Lost(
                    f"The episode came to no end in {limit_s:g} s ({answers}). "
                    "Raise agent.episode_timeout_s, or look at what it waits for."
                )
            await asyncio.wait({playing.ended}, timeout=left_s)
        return playing.ended.result()

    def _played(self, playing: _Playing, ended: Ended) -> Played:
        """What an episode came to: its answers are those of its first trained conversation."""
        talk, said = playing.first
        ending = ended.limit or playing.cut_by or "stop"
        return Played(
            worth(self._settings.agent, ending, ended.reward),
            next((str(message["content"]) for message in talk if message["role"] == "user"), ""),
            [],
            said[-1] if said else "",
            [],
            "stop" if ending == "stop" else "length",
            playing.trained_tokens,
            sum(map(len, playing.said.values())),
            talk,
            talk or None,
            said,
            tuple(playing.conversations.forks),
        )

    # -- what the processes say ---------------------------------------------------------------------------

    def on_ask(self, child: AgentChild, number: int, question: int, asked: dict[str, Any]) -> None:
        """An episode asks its policy."""
        self._pool.answered(child)
        if (playing := self._playing.get(number)) is None:
            return
        if "chat" not in asked:
            child.refuse(number, question, "", NO_TOKENS)
        elif playing.turns + playing.open >= self._settings.agent.max_turns:
            text = f"The episode has had its {playing.turns} turns (agent.max_turns)."
            child.refuse(number, question, "turns", text)
        elif (budget := self._budget(playing, asked.get("max_tokens"))).most < 1:
            text = f"The policy has said {playing.tokens} tokens (agent.max_sampled_tokens)."
            child.refuse(number, question, "tokens", text)
        else:
            if not playing.open:
                playing.counted_at = asyncio.get_running_loop().time()
            playing.open += 1
            playing.promised += budget.most
            task = asyncio.create_task(self._answer(child, number, question, asked, budget), name="a turn")
            playing.tasks.add(task)
            task.add_done_callback(playing.tasks.discard)

    def _budget(self, playing: _Playing, wanted: int | None) -> _Budget:
        """What the next turn may have."""
        agent = self._settings.agent
        longest = agent.max_turn_tokens or self._settings.rollout.max_response_tokens
        most = {"length": longest, "": wanted or longest}
        if agent.max_sampled_tokens:
            most["tokens"] = agent.max_sampled_tokens - playing.tokens - playing.promised
        limit = min(most, key=lambda name: most[name])
        return _Budget(most[limit], limit)

    async def _answer(
        self, child: AgentChild, number: int, question: int, asked: dict[str, Any], budget: _Budget
    ) -> None:
        playing, tools = self._playing[number], asked.get("tools") or None
        try:
            messages = check_messages(asked["chat"])
            is_trained = not asked.get("is_untrained")
            conversation = playing.conversations.ask(messages, tools, is_trained=is_trained)
            kwargs = playing.template_kwargs
            answer = await self._endpoint.chat(messages, tools, budget.most, template_kwargs=kwargs)
        except ValueError as error:
            child.refuse(number, question, "", str(error))
        except RecursionError:
            child.refuse(number, question, "", TOO_DEEP)
        except (Lost, ConfigError) as error:
            if not playing.ended.done():
                playing.ended.set_exception(error)
        else:
            now = asyncio.get_running_loop().time()
            playing.awaited_s += now - playing.counted_at
            playing.counted_at = now
            playing.turns += 1
            playing.tokens += answer.tokens
            playing.conversations.answered(conversation, messages, answer.message, tools)
            if is_trained:
                playing.told(conversation.member, messages, answer, limit=budget.limit)
            child.answer(number, question, {"message": answer.message, "ending": answer.ending})
        finally:
            playing.open -= 1
            playing.promised -= budget.most

    def on_ended(self, number: int, ended: Ended) -> None:
        """An episode has ended."""
        if (playing := self._playing.get(number)) is not None and not playing.ended.done():
            playing.ended.set_result(ended)

    def on_failed(self, number: int, kind: FailureKind, reason: str) -> None:
        """An episode has failed."""
        if (playing := self._playing.get(number)) is not None and not playing.ended.done():
            playing.ended.set_exception((_ProcessDied if kind == "process" else Lost)(reason))
