"""The policy as a model of verifiers: a client for its interception server, and a loop in this process.

Invariants: requests leave this process only to verifiers' own server on the loopback; a call that cannot be
answered ends the run of the task, and the first cause is kept. Imports verifiers, which takes seconds.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from verifiers.v1 import (
    Agent,
    AgentConfig,
    Client,
    EvalClientConfig,
    Harness,
    HarnessConfig,
    ProgramResult,
    SubprocessConfig,
    harness_config_type,
)
from verifiers.v1.clients.client import RelayReply
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.errors import model_error
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception import Interception, InterceptionServer

from protocol.errors import ConfigError
from workers.agent.policy import AgentPolicy, BudgetExceeded

NOWHERE = "http://staleflow.invalid/v1"  # a client that is never asked
REFUSED = 400  # a status that SDKs do not retry


class PolicyClient(Client):
    """One episode's policy as a client of verifiers."""

    def __init__(self, policy: AgentPolicy) -> None:
        self._policy = policy
        self.session: Any = None
        """The session of verifiers, once there is one."""
        self.failure: Exception | None = None
        """Why the policy could not answer: invalid messages, or the end of the episode."""

    async def get_response(self, dialect: Any, body: dict[str, Any], *_: Any, **__: Any) -> Any:
        """As `Client.get_response`."""
        raw = await self._completion(dialect, body)
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    async def relay(self, dialect: Any, body: dict[str, Any], *_: Any, **__: Any) -> Any:
        """As `Client.relay`: the whole answer at once."""
        raw = await self._completion(dialect, body)

        async def chunks() -> AsyncIterator[bytes]:
            for event in dialect.stream_events(raw):
                yield event

        async def close() -> None:
            return

        return RelayReply("text/event-stream", chunks(), close)

    async def _completion(self, dialect: Any, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion. Raises: ProviderError, which goes to the program that asked."""
        if not isinstance(dialect, ChatDialect):
            raise model_error(
                f"The policy answers chat completions only, not {type(dialect).__name__}.",
                status_code=REFUSED,
            )
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        try:
            answer = await self._policy.chat(body["messages"], tools=body.get("tools"), max_tokens=most)
        except BudgetExceeded as error:
            # a stop, not an error: the task scores what there is; the server drops this answer and says 400
            self.session.trace.stop(f"staleflow_{error.limit}")
            answer = {"role": "assistant", "content": ""}
        except Exception as error:  # reported here, and raised again after the run: verifiers is not at fault
            self.failure = self.failure or error
            raise model_error(f"{type(error).__name__}: {error}", status_code=REFUSED) from error
        return _completion_of(answer, self._policy.model)


def _completion_of(answer: Mapping[str, Any], model: str) -> dict[str, Any]:
    reason = "tool_calls" if answer.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-staleflow", "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": [{"index": 0, "message": dict(answer), "finish_reason": reason, "logprobs": None}],
    }  # fmt: skip


class PolicyServers:
    """The one interception server of this process, shared by its episodes."""

    def __init__(self) -> None:
        self._server: InterceptionServer | None = None
        self._lock = asyncio.Lock()

    async def slot(self, client: PolicyClient) -> "PolicySlot":
        """The interception for an `Agent`. Starts the server at the first call."""
        async with self._lock:
            if self._server is None:
                server = InterceptionServer()
                await server.start()
                self._server = server
        return PolicySlot(self._server, client)


class PolicySlot(Interception):
    """The server for one episode: its policy answers its session's requests."""

    def __init__(self, server: InterceptionServer, client: PolicyClient) -> None:
        super().__init__()
        self._server, self._client = server, client

    async def start(self) -> None:
        """As `Interception.start`: the server runs already."""

    @asynccontextmanager
    async def acquire(self, session: Any) -> AsyncIterator[Any]:
        """As `Interception.acquire`."""
        async with self._server.acquire(session) as slot:
            session.client, self._client.session = self._client, session
            yield slot


class LoopHarness(Harness):
    """Asks the policy and calls the task's tools until it calls none, in this process, without downloads."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str],
        data: Any,
    ) -> ProgramResult:  # fmt: skip
        """As `Harness.launch`."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message.model_dump(exclude_none=True) for message in prompt or ()]
        servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            tools, table, connections = await connect_mcp(servers, stack)
            while True:
                asked = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
                headers = {"Authorization": f"Bearer {secret}"}
                got = await http.post(f"{endpoint}/chat/completions", json=asked, headers=headers)
                if trace.stop_condition is not None:
                    break  # by a limit, or by a `@stop` of the task
                if got.status_code != httpx.codes.OK:
                    return ProgramResult(1, "", got.text)
                answer = got.json()["choices"][0]["message"]
                messages.append(answer)
                if not (calls := answer.get("tool_calls")):
                    break
                for call in calls:
                    content = await _called(connections, table, call["function"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return ProgramResult(0, "", "")


async def _called(connections: Any, table: Mapping[str, Any], function: Mapping[str, str]) -> Any:
    """The result of a tool, or an error text."""
    name = function["name"]
    if name not in table:
        return f"Error: there is no tool {name!r:.60}. There are: {', '.join(table) or 'none'}."
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments of {name} are no JSON: {error}."
    if not isinstance(arguments, dict):
        return f"Error: the arguments of {name} are no JSON object."
    return await call_mcp(connections, table, name, arguments)


def agent_config(harness: str, *, is_ours: bool) -> AgentConfig:
    """The configuration of every episode. Raises: ConfigError if there is no such harness."""
    try:
        config = HarnessConfig(id="null") if is_ours else harness_config_type(harness)(id=harness)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"`agent.options` name the harness {harness!r}: {error}") from error
    return AgentConfig(
        model="policy", harness=config, runtime=SubprocessConfig(), client=EvalClientConfig(base_url=NOWHERE)
    )


def make_agent(config: AgentConfig, slot: PolicySlot, *, is_ours: bool) -> Agent:
    """An agent of verifiers for one episode."""
    agent = Agent(config, interception=slot)
    if is_ours:
        agent.harness = LoopHarness(config.harness)
    return agent
