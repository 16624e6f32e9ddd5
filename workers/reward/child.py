"""One process of the reward function, as the worker sees it: calls in, answers out, in any order.

Invariants: a call in hand is always answered, failed, or given back to be asked again; what the process says
is checked before it is believed; when it ends, its calls are settled after all that it has started has ended.
A failure is put down to one call only where it is certain to be that one's: else all that may have caused it
are asked again, each alone.
"""

import asyncio
import logging
import math
import secrets
import signal
from asyncio import SubprocessTransport
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from protocol.errors import ConfigError, RunError
from workers.reward import pipe as pipe
from workers.reward.pipe import GarbageError, packet

logger = logging.getLogger(__name__)

END_LIMIT_S = 10.0
"""For the keeper to end everything, or for a process that has closed its pipe to end."""
BLOCKED_SHARE = 0.5
"""Of its limit. A call that others kept from running for longer is not to blame."""


class ScoringFailed(Exception):
    """The function raised, hung, died, or returned something else than numbers; the text is for the user."""


class OutOfCpu(ScoringFailed):
    """The process was ended by the limit of CPU time that it had set itself for this call."""


class AskAgain(Exception):
    """The call was cut off, and need not be why."""

    def __init__(self, *, is_alone: bool = False) -> None:
        super().__init__()
        self.is_alone = is_alone


class LoopBlocked(AskAgain):
    """The calls of an async function have kept one another from running."""


class Kind(NamedTuple):
    """What a process says of its function."""

    is_async: bool
    is_per_response: bool


class CallLimits(NamedTuple):
    """Of one call, in seconds."""

    timeout_s: float
    grace_s: float  # for a call to obey its cancellation
    key: str = "reward.timeout_s"  # where the limit is set
    memory_mb: int = 0  # of its process, with all others of it


@dataclass(eq=False, slots=True)
class Call:
    """One group that is to be scored."""

    request: tuple[Any, ...]
    members: int
    answer: asyncio.Future[list[float]]
    is_alone: bool = False  # no other call may be with the process
    timer: asyncio.TimerHandle | None = None
    has_begun: bool = False
    had_company: bool = False  # of other calls
    is_cancelled: bool = False
    is_heard: bool = False  # the process saw the cancellation before it answered
    blocked_s: float = 0.0  # for which the event loop was blocked, before it began; once heard, while it ran

    def watch(self, limit_s: float, on_late: Callable[["Call"], None]) -> None:
        """Have `on_late` called after so long, in place of what was to be called."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(limit_s, on_late, self)

    def settle(self, outcome: list[float] | Exception) -> None:
        """Answer whoever waits, if anybody does still."""
        if self.timer is not None:
            self.timer.cancel()
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class RewardChild(asyncio.SubprocessProtocol):
    """A process behind its keeper."""

    def __init__(
        self, limits: CallLimits, *, setup: bytes,
        on_answer: Callable[[], None], on_gone: Callable[["RewardChild"], None],
    ) -> None:  # fmt: skip
        self.ready: asyncio.Future[Kind] = asyncio.get_running_loop().create_future()
        self.kind: Kind | None = None
        """None: it is not ready yet."""
        self.calls: dict[int, Call] = {}
        self.is_open = True
        """Whether it may be given calls."""
        self.gone = asyncio.Event()
        self.reason = ""
        """Why it has ended."""
        self._limits, self._setup = limits, setup
        self._on_answer, self._on_gone = on_answer, on_gone
        self._secret = secrets.token_bytes(pipe.SECRET_BYTES)
        self._packets = pipe.Packets(secret=self._secret, max_bytes=pipe.MAX_ANSWER_BYTES)
        self._transport: SubprocessTransport
        self._is_ending = False
        self._culprit: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = 0

    # -- the process ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process was started."""
        self._transport = cast("SubprocessTransport", transport)
        self._write(self._secret + self._setup)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what it says."""
        taken = 0
        try:
            for kind, *parts in self._packets.feed(data):
                if self._is_ending:
                    return
                self._take(kind, parts)
                taken += kind in (pipe.SCORED, pipe.FAILED)
        except GarbageError as error:
            self.end(
                "The process of the reward function wrote something else than answers to the pipe to its "
                f"worker, and was killed: {error}. The function writes to a descriptor that it did not open."
            )
        if taken:
            self._on_answer()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It ends, or has closed its end."""
        self.is_open = False
        if not self._is_ending and self._timer is None:
            self._set_timer(END_LIMIT_S, lambda: self.end(_pipe_closed()))

    def process_exited(self) -> None:
        """It has ended; what it has said last may still be in the pipe."""
        self.is_open = False
        self._set_timer(END_LIMIT_S, self._settle)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all that it has said was heard."""
        self._settle()

    def end(self, reason: str, culprit: Call | None = None) -> None:
        """Have it killed with everything that it has started; `culprit` is the call that fails for it."""
        if self._is_ending or self.gone.is_set():
            return
        self.is_open, self._is_ending = False, True
        self.reason, self._culprit = reason, culprit
        self._set_timer(END_LIMIT_S, self._kill_keeper)
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            cast("asyncio.WriteTransport", stdin).abort()  # the keeper sees it, and ends everything

    def _kill_keeper(self) -> None:
        logger.warning("Something that the reward function has started cannot be killed; it is left alone.")
        self._set_timer(END_LIMIT_S, self._settle)
        self._transport.kill()

    def _set_timer(self, delay_s: float, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, what)

    def _settle(self) -> None:
        """Answer for all that was in hand."""
        if self.gone.is_set():
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_ending:
            self.reason = _how_it_ended(
                self._transport.get_returncode(), self._limits, is_scoring=bool(self.calls)
            )
        self._transport.close()
        self.gone.set()
        if not self.ready.done():
            self.ready.set_exception(RunError(self.reason))
        suspects = [call for call in self.calls.values() if call.has_begun] or list(self.calls.values())
        culprit = suspects[0] if self._culprit is None and len(suspects) == 1 else self._culprit
        for call in reversed(self.calls.values()):  # what is asked again goes to the front of the line
            is_suspect = culprit is None and call in suspects
            call.settle(self._failure() if call is culprit else AskAgain(is_alone=is_suspect))
        self._on_gone(self)

    def _failure(self) -> ScoringFailed:
        """Of the call that is to blame."""
        is_out = not self._is_ending and self._transport.get_returncode() == -signal.SIGXCPU
        return (OutOfCpu if is_out else ScoringFailed)(self.reason)

    # -- calls ------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Ask for one more score."""
        self._asked += 1
        call.has_begun = call.is_cancelled = call.is_heard = False
        call.had_company = bool(self.calls)
        for other in self.calls.values():
            other.had_company = True
        self.calls[self._asked] = call
        self._write(packet(pipe.SCORE, self._asked, *call.request))
        call.watch(self._limits.timeout_s, self._on_late)

    def _write(self, data: bytes) -> None:
        stdin = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if stdin is not None and not stdin.is_closing():
            stdin.write(data)

    def _on_late(self, call: Call) -> None:
        """The limit of a call has passed: cut it off."""
        limit_s = self._limits.timeout_s
        assert self.kind is not None
        if not call.has_begun:
            if any(other.has_begun for other in self.calls.values()):  # these have limits of their own
                call.watch(limit_s, self._on_late)
            else:
                self.end(
                    f"The process of the reward function did not begin a call within `{self._limits.key}` = "
                    f"{limit_s:g} s and was killed: something that an earlier call left behind blocks its "
                    "event loop, or has closed the pipe to its worker."
                )
        elif self.kind.is_async:
            call.is_cancelled = True
            number = next(number for number, other in self.calls.items() if other is call)
            self._write(packet(pipe.CANCEL, number))
            call.watch(self._limits.grace_s, self._on_disobedience)
        else:
            self.end(f"{self._took_too_long} and was killed with all that it had started.", call)

    def _on_disobedience(self, call: Call) -> None:
        killed = f"within {self._limits.grace_s:g} s, and was killed with all that it had started."
        if call.is_heard:
            self.end(f"{self._took_too_long}, did not obey its cancellation {killed}", call)
        else:  # which call blocks the loop is not known here
            self.end(f"{self._took_too_long}, blocked its event loop, could not be cancelled {killed}")

    @property
    def _took_too_long(self) -> str:
        return f"The reward function took longer than `{self._limits.key}` = {self._limits.timeout_s:g} s"

    def _take(self, kind: Any, parts: list[Any]) -> None:
        """Raises: GarbageError if this cannot be its word."""
        if self.kind is None:
            self._take_first(kind, parts)
            return
        number, value = parts if len(parts) == 2 else (0, None)
        call = self.calls.get(number) if isinstance(number, int) else None
        blocked_s = value if isinstance(value, float) and math.isfinite(value) else math.nan
        if call is None:
            raise GarbageError(f"{[kind, *parts]!r:.80} is about no call in hand")
        if kind == pipe.BEGUN and blocked_s >= 0:
            call.has_begun, call.blocked_s = True, blocked_s
            call.watch(self._limits.timeout_s, self._on_late)
        elif kind == pipe.HEARD and blocked_s >= 0 and call.is_cancelled:
            call.is_heard, call.blocked_s = True, blocked_s - call.blocked_s
        elif kind in (pipe.SCORED, pipe.FAILED) and call.has_begun:
            outcome = self._outcome(call, kind, value)
            del self.calls[number]
            call.settle(outcome)
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} is not what a process says")

    def _take_first(self, kind: Any, parts: list[Any]) -> None:
        if kind == pipe.READY and len(parts) == 2:
            self.kind = Kind(*map(bool, parts))
            if not self.ready.done():
                self.ready.set_result(self.kind)
        elif kind == pipe.BROKEN and len(parts) == 1:
            if not self.ready.done():
                self.ready.set_exception(ConfigError(str(parts[0])))
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} before it was ready")

    def _outcome(self, call: Call, kind: str, value: Any) -> list[float] | Exception:
        """Raises: GarbageError."""
        if call.is_cancelled:
            return self._cut_off(call)
        return ScoringFailed(str(value)) if kind == pipe.FAILED else _checked(value, call.members)

    def _cut_off(self, call: Call) -> Exception:
        was_blocked = not call.is_heard or call.blocked_s > BLOCKED_SHARE * self._limits.timeout_s
        if call.had_company and was_blocked:
            return LoopBlocked()
        return ScoringFailed(f"{self._took_too_long} and was cancelled.")


def _checked(rewards: Any, members: int) -> list[float]:
    """Raises: GarbageError if these are not the rewards of so many responses."""
    if not isinstance(rewards, list) or len(rewards) != members:
        raise GarbageError(f"{rewards!r:.80} as the rewards of {members} responses")
    for reward in rewards:
        if type(reward) is not float or not math.isfinite(reward):
            raise GarbageError(f"{reward!r:.80} as a reward")
    return rewards


def _how_it_ended(code: int | None, limits: CallLimits, *, is_scoring: bool) -> str:
    if code == pipe.CLOSED:
        return _pipe_closed()
    if code == pipe.OUT_OF_MEMORY:
        return (
            f"The process of the reward function took more than `reward.memory_mb` = {limits.memory_mb} MB "
            "of memory, with all that it had started, and was killed. Raise the limit if it needs that."
        )
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
        how = f"was killed by signal {-code} ({name}), and not by its worker"
        if name == "SIGKILL":
            how += "; the kernel does that where memory runs out"
        if name == "SIGXCPU":
            how += "; the kernel does that where the limit of CPU time is reached"
    while_scoring = " while it scored" if is_scoring else ""
    return (
        f"The process of the reward function {how}{while_scoring}. What it printed is in this worker's log."
    )


def _pipe_closed() -> str:
    return (
        "The process of the reward function closed the pipe to its worker, as code does that closes "
        "descriptors which it did not open, and was ended. What it printed is in this worker's log."
    )
