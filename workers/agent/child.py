"""One process of episodes, as the worker sees it.

Invariants: messages of the process are checked before they are used, and a message about an episode that it
does not run changes nothing; when it ends, each of its episodes is reported once, and one of them is blamed
only if it is certainly the cause.
"""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from protocol.errors import ConfigError
from protocol.messages import Earned
from protocol.plain_text import is_plain_line, plain
from workers.agent import pipe as pipe
from workers.agent.pipe import MAX_WORD_BYTES
from workers.agent.policy import MAX_LOG_CHARS, MAX_METRICS, finite
from workers.children.packets import GarbageError, packet
from workers.children.process import Code, KeptProcess

NO_DOOR = ("", "")
GRACE_S = 5.0
"""For a cancelled episode to close its resources."""
LOOK_S = 1.0
MARGIN_S = 2.5
"""Extra patience with a silent process, which may first report the episode that blocks it."""

FailureKind = Literal["environment", "agent", "process", "limit"]


class Ended(NamedTuple):
    """The result of the user's function."""

    reward: float | None
    turn_rewards: tuple[tuple[int, float], ...]
    metrics: tuple[tuple[str, float], ...]
    limit: str
    log: str = ""
    earned: Earned = "end"  # as in EpisodeEnded


class EpisodeListener(Protocol):
    """Receives the events of a process's episodes."""

    def on_ask(self, child: "AgentChild", number: int, question: int, asked: dict[str, Any]) -> None:
        """An episode asks its policy."""
        ...

    def on_ended(self, number: int, ended: Ended) -> None:
        """An episode has ended."""
        ...

    def on_failed(self, number: int, kind: FailureKind, reason: str) -> None:
        """An episode has failed."""
        ...


class AgentChild(KeptProcess):
    """A process that runs episodes."""

    def __init__(
        self, code: Code, *, setup: bytes, most_blocked_s: float, listener: EpisodeListener,
        on_gone: Callable[["AgentChild"], None], on_obeyed: Callable[["AgentChild"], None],
        is_alone: bool = False,
    ) -> None:  # fmt: skip
        """`most_blocked_s`: longest time for which an episode may block all others.

        `on_obeyed`: called when a cancelled episode has ended. `is_alone`: the process has only one episode.
        """
        super().__init__(code, setup=setup, max_bytes=MAX_WORD_BYTES)
        self.is_alone = is_alone
        """Whether the process has only one episode, and ends with it."""
        self.asks_at_door = False
        """Whether its agent can reach its policy only at the door; known when it is ready."""
        self.episodes: set[int] = set()
        """Episodes that have begun and not ended."""
        self._ending: dict[int, asyncio.TimerHandle] = {}
        self._most_blocked_s = most_blocked_s
        self._listener, self._on_gone, self._on_obeyed = listener, on_gone, on_obeyed
        self._alive_at = 0.0
        self._look_at = 0.0
        self._look_timer: asyncio.TimerHandle | None = None
        self._culprit: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the process takes episodes."""
        return self.is_open and self.has_started

    @property
    def is_idle(self) -> bool:
        """Whether no episode of the process runs, and none still cleans up after its end."""
        return not self.episodes and not self._ending

    def begin(
        self, number: int, seed: int, row: bytes, door: tuple[str, str] = NO_DOOR, state: bytes = b""
    ) -> None:
        """Begin an episode. `door`: its url and key. `state`: saved state to go on from, b"" to start."""
        if self.gone.is_set():  # it was ready, and died before the worker came to this
            self._listener.on_failed(number, "process", self.reason)
            return
        self.episodes.add(number)
        self._write(packet(pipe.BEGIN, number, seed, row, *door, state))

    def count(self, number: int, place: int, *, limit: str = "", id: str = "") -> None:
        """Report the result of a request at the door: an answer, or a limit that was reached.

        `place`: of the turn in the order of asking (-1: it is not trained), or with a limit the number of
        turns asked for. `id`: of the answer.
        """
        if number in self.episodes:
            self._write(packet(pipe.COUNTED, number, place, limit, id))

    def answer(self, number: int, question: int, answer: dict[str, Any]) -> None:
        """Send the policy's answer."""
        self._write(packet(pipe.ANSWER, number, question, json.dumps(answer).encode()))

    def refuse(self, number: int, question: int, limit: str, reason: str) -> None:
        """Report that the policy does not answer: a limit is reached, or, if "", the request is invalid."""
        self._write(packet(pipe.REFUSE, number, question, limit, reason))

    def cancel(self, number: int) -> None:
        """Cancel an episode, and ignore its further messages. The process is killed if it does not obey."""
        if number in self.episodes:
            self.episodes.discard(number)
            loop = asyncio.get_running_loop()
            self._ending[number] = loop.call_later(GRACE_S, self._on_disobedience)
            self._write(packet(pipe.END, number))

    # -- what it says -----------------------------------------------------------------------------------

    def _take(self, kind: Any, parts: list[Any]) -> bool:
        if not self.ready.done():
            self._take_first(kind, parts)
            return False
        number = parts[0] if parts else None
        if not isinstance(number, int):
            raise GarbageError(f"{[kind, *parts]!r:.80} is about no episode")
        if kind == pipe.ALIVE and number == -1 and len(parts) == 1:
            self._alive_at = asyncio.get_running_loop().time()
        elif kind == pipe.BLOCKED:
            self._take_blocked(number, parts[1:])
        elif kind == pipe.ASK:
            self._take_ask(number, parts[1:])
        elif kind in (pipe.ENDED, pipe.FAILED, pipe.GONE):
            self._take_end(kind, number, parts[1:])
            return True
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} is not what a process says")
        return False

    def _take_first(self, kind: Any, parts: list[Any]) -> None:
        if kind == pipe.READY and [type(part) for part in parts] == [bool]:
            self.asks_at_door = parts[0]
            self.ready.set_result(None)
            self._alive_at = asyncio.get_running_loop().time()
            self._look_again()
        elif kind == pipe.BROKEN and len(parts) == 1:
            self.ready.set_exception(ConfigError(str(parts[0])))
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} before it was ready")

    def _take_ask(self, number: int, parts: list[Any]) -> None:
        shapes = [type(part) for part in parts]
        if shapes not in ([int, bytes], [int, bytes, bytes]):
            raise GarbageError(f"{parts!r:.80} as a request")
        asked = _object(parts[1]) | ({"state": parts[2]} if len(parts) == 3 else {})
        tokens, most = asked.get("tokens"), asked.get("max_tokens")
        if (tokens is not None and not _are_ids(tokens)) or not (most is None or _are_ids([most])):
            raise GarbageError(f"{asked!r:.80} as a request")
        if number in self.episodes:
            self._listener.on_ask(self, number, parts[0], asked)

    def _take_end(self, kind: str, number: int, parts: list[Any]) -> None:
        if (timer := self._ending.pop(number, None)) is not None:
            timer.cancel()
            self._on_obeyed(self)
        if number not in self.episodes:
            return
        if kind == pipe.ENDED and len(parts) == 1 and isinstance(parts[0], bytes):
            ended = _ended(_object(parts[0]))
            self.episodes.discard(number)
            self._listener.on_ended(number, ended)
        elif kind == pipe.FAILED and len(parts) == 2 and parts[0] in ("environment", "agent", "limit"):
            self.episodes.discard(number)
            self._listener.on_failed(number, parts[0], str(parts[1]))
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} as the end of an episode")

    def _take_blocked(self, number: int, parts: list[Any]) -> None:
        if len(parts) != 1 or not isinstance(parts[0], float) or not math.isfinite(parts[0]):
            raise GarbageError(f"{parts!r:.80} as seconds")
        if parts[0] > self._most_blocked_s:
            self._culprit = number if number in self.episodes else None
            self.end(
                f"The agent blocked the event loop of its process for {parts[0]:.1f} s, so that no other "
                "episode could go on, and the process was killed. Await what takes long, or run it with "
                "asyncio.to_thread."
            )

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + LOOK_S
        self._look_timer = loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        """End a process that is too busy to report which episode blocks it."""
        if not self.is_open:  # its end has a limit of its own
            return
        now = asyncio.get_running_loop().time()
        late_s = now - self._look_at
        if late_s > LOOK_S:
            self._alive_at += late_s  # this process stood still itself: the child's messages wait to be read
        silent_s = now - self._alive_at
        if silent_s > self._most_blocked_s + MARGIN_S:
            if len(self.episodes) == 1:
                (self._culprit,) = self.episodes
            self.end(
                f"The process of the agent has shown no sign of life for {silent_s:.1f} s, so that no "
                "episode could go on, and was killed. Code that does not let go of Python's interpreter does "
                "that: a regular expression that backtracks, or arithmetic on huge numbers. Its episodes are "
                "begun again, each alone, so that the one that does it is found."
            )
        else:
            self._look_again()

    def _on_disobedience(self) -> None:
        self.end(
            f"An episode that was ended did not obey within {GRACE_S:g} s, and its process was killed with "
            "all that it had started."
        )

    # -- its end ----------------------------------------------------------------------------------------

    def _settled(self) -> None:
        for timer in (*self._ending.values(), *filter(None, [self._look_timer])):
            timer.cancel()
        lost, self.episodes = sorted(self.episodes), set()
        is_certain = len(lost) == 1 and not self._is_ending
        culprit = lost[0] if is_certain else self._culprit
        self._on_gone(self)
        for number in lost:
            self._listener.on_failed(number, "agent" if number == culprit else "process", self.reason)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object in a text. Raises: GarbageError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"{text[:80]!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise GarbageError(f"{text[:80]!r} is no JSON object")
    return value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(id) is int and 0 <= id < 2**31 for id in value)


def _ended(told: dict[str, Any]) -> Ended:
    """The checked result of an episode. Raises: GarbageError."""
    try:
        reward = told["reward"]
        rewards = tuple((int(turn), finite(value, "a turn")) for turn, value in told["turn_rewards"])
        metrics = tuple((str(name), finite(value, "a metric")) for name, value in told["metrics"].items())
        checked = None if reward is None else finite(reward, "an episode")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GarbageError(f"{told!r:.80} as the end of an episode: {error}") from None
    limit, log = told.get("limit"), told.get("log", "")
    if not isinstance(log, str) or len(log) > MAX_LOG_CHARS or plain(log) != log:
        raise GarbageError(f"{log!r:.80} as the log of an episode")
    is_named = len(metrics) <= MAX_METRICS and all(is_plain_line(name) for name, _ in metrics)
    if limit not in ("", "turns", "tokens", "context") or not is_named:
        raise GarbageError(f"{told!r:.80} as the end of an episode")
    return Ended(checked, rewards, metrics, limit, log, _earned(told))


def _earned(told: dict[str, Any]) -> Earned:
    """Whether the reward is of the end or of turns. Raises: GarbageError."""
    match told.get("earned"):
        case "end":
            return "end"
        case "turns" if told["reward"] is not None:
            return "turns"
        case _:
            raise GarbageError(f"{told!r:.80} as the end of an episode")
