"""One process of the reward function, as the worker sees it: sends calls, receives answers in any order.

Invariants: a call is always answered, failed, or given back to be asked again; messages of the process are
checked before they are used; when it ends, its calls are settled after all of its child processes have ended.
A failure is blamed on one call only if that call certainly caused it: otherwise all calls that may have
caused it are asked again, each alone.
"""

import asyncio
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.errors import ConfigError
from workers.children.packets import GarbageError, packet
from workers.children.process import Code, KeptProcess
from workers.reward import pipe as pipe

BLOCKED_SHARE = 0.5
"""Share of a call's limit. A call that others kept from running for longer is not blamed."""
TRIES_ALONE = 5
"""Times that a call which cannot begin is asked alone, at most."""


class ScoringFailed(Exception):
    """The function raised, hung, died, or did not return numbers; the text is for the user."""


class OutOfCpu(ScoringFailed):
    """The process exceeded the CPU limit that it had set itself for this call."""


class AskAgain(Exception):
    """The call was cut off, perhaps without being the cause."""

    def __init__(self, *, is_alone: bool = False) -> None:
        super().__init__()
        self.is_alone = is_alone


class LoopBlocked(AskAgain):
    """Calls of an async function blocked the event loop for each other."""


class Kind(NamedTuple):
    """The kind of a process's function: async or not, per response or per group."""

    is_async: bool
    is_per_response: bool


class CallLimits(NamedTuple):
    """The limits of one call, in seconds."""

    timeout_s: float
    grace_s: float  # for a cancelled call to end
    key: str = "reward.timeout_s"  # where the limit is set
    memory_mb: int = 0  # of its process and all child processes together


@dataclass(eq=False, slots=True)
class Call:
    """A request to score one group."""

    request: tuple[Any, ...]
    members: int
    answer: asyncio.Future[list[float]]
    is_alone: bool = False  # no other call may be in the process
    tries_alone: int = 0  # times that it was sent since
    timer: asyncio.TimerHandle | None = None
    has_begun: bool = False
    had_company: bool = False  # of other calls
    is_cancelled: bool = False
    is_heard: bool = False  # the process received the cancellation before it answered
    blocked_s: float = 0.0  # event loop blocked before it began; once `is_heard`, while it ran

    def watch(self, limit_s: float, on_late: Callable[["Call"], None]) -> None:
        """Call `on_late` after `limit_s`, in place of an earlier timer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(limit_s, on_late, self)

    def settle(self, outcome: list[float] | Exception) -> None:
        """Set the call's result, if its caller still waits."""
        if self.timer is not None:
            self.timer.cancel()
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class RewardChild(KeptProcess):
    """A process of the reward function."""

    def __init__(
        self, limits: CallLimits, *, setup: bytes,
        on_answer: Callable[[], None], on_gone: Callable[["RewardChild"], None],
    ) -> None:  # fmt: skip
        code = Code("the reward function", "reward.memory_mb", limits.memory_mb)
        super().__init__(code, setup=setup, max_bytes=pipe.MAX_ANSWER_BYTES)
        self.kind: Kind | None = None
        """None until it is ready."""
        self.calls: dict[int, Call] = {}
        self._limits = limits
        self._on_answer, self._on_gone = on_answer, on_gone
        self._culprit: Call | None = None
        self._asked = 0

    def blame(self, reason: str, culprit: Call) -> None:
        """Kill the process with all its child processes; `culprit` fails for `reason`."""
        if not self._is_ending and not self.gone.is_set():
            self._culprit = culprit
            self.end(reason)

    def _answered(self) -> None:
        self._on_answer()

    def _meanwhile(self) -> str:
        return " while it scored" if self.calls else ""

    def _settled(self) -> None:
        suspects = [call for call in self.calls.values() if call.has_begun] or list(self.calls.values())
        culprit = self._culprit
        if culprit is None and len(suspects) == 1 and self._is_to_blame(suspects[0]):
            culprit = suspects[0]
        for call in reversed(self.calls.values()):  # what is asked again goes to the front of the line
            is_suspect = culprit is None and call in suspects
            call.settle(self._failure() if call is culprit else AskAgain(is_alone=is_suspect))
        self._on_gone(self)

    def _is_to_blame(self, call: Call) -> bool:
        """Whether the only suspect is: it had begun, or could not begin where no earlier call left anything.

        The number of its tries is limited, as other calls may be the first in every new process.
        """
        return call.has_begun or (call.is_alone and (self._asked == 1 or call.tries_alone >= TRIES_ALONE))

    def _failure(self) -> ScoringFailed:
        """The error of the call that is to blame."""
        is_out = not self._is_ending and self._transport.get_returncode() == -signal.SIGXCPU
        return (OutOfCpu if is_out else ScoringFailed)(self.reason)

    # -- calls ------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Send one more call to the process."""
        self._asked += 1
        call.has_begun = call.is_cancelled = call.is_heard = False
        call.tries_alone += call.is_alone
        call.had_company = bool(self.calls)
        for other in self.calls.values():
            other.had_company = True
        self.calls[self._asked] = call
        group, row, prompt, *rest = call.request
        whole = prompt.encode("utf-8", "surrogatepass")  # packets shorten texts
        self._write(packet(pipe.SCORE, self._asked, group, row, whole, *rest))
        call.watch(self._limits.timeout_s, self._on_late)

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
            what = f"{self._took_too_long} and was killed with all that it had started."
            self.blame(f"{what} {self._remedy}", call)

    def _on_disobedience(self, call: Call) -> None:
        killed = f"within {self._limits.grace_s:g} s, and was killed with all that it had started."
        if call.is_heard:
            self.blame(f"{self._took_too_long}, did not obey its cancellation {killed}", call)
        else:  # which call blocks the loop is not known here
            self.end(f"{self._took_too_long}, blocked its event loop, could not be cancelled {killed}")

    @property
    def _took_too_long(self) -> str:
        return f"The reward function took longer than `{self._limits.key}` = {self._limits.timeout_s:g} s"

    @property
    def _remedy(self) -> str:
        return f"Raise `{self._limits.key}`, or look at what it waits for."

    def _take(self, kind: Any, parts: list[Any]) -> bool:
        if self.kind is None:
            self._take_first(kind, parts)
            return False
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
        return kind in (pipe.SCORED, pipe.FAILED)

    def _take_first(self, kind: Any, parts: list[Any]) -> None:
        if kind == pipe.READY and len(parts) == 2:
            self.kind = Kind(*map(bool, parts))
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == pipe.BROKEN and len(parts) == 1:
            if not self.ready.done():
                self.ready.set_exception(ConfigError(str(parts[0])))
        else:
            raise GarbageError(f"{[kind, *parts]!r:.80} before it was ready")

    def _outcome(self, call: Call, kind: str, value: Any) -> list[float] | Exception:
        """The result of an answer. Raises: GarbageError."""
        if call.is_cancelled:
            return self._cut_off(call)
        return ScoringFailed(str(value)) if kind == pipe.FAILED else _checked(value, call.members)

    def _cut_off(self, call: Call) -> Exception:
        was_blocked = not call.is_heard or call.blocked_s > BLOCKED_SHARE * self._limits.timeout_s
        if call.had_company and was_blocked:
            return LoopBlocked()
        return ScoringFailed(f"{self._took_too_long} and was cancelled. {self._remedy}")


def _checked(rewards: Any, members: int) -> list[float]:
    """The rewards, if there is one per response. Raises: GarbageError."""
    if not isinstance(rewards, list) or len(rewards) != members:
        raise GarbageError(f"{rewards!r:.80} as the rewards of {members} responses")
    for reward in rewards:
        if type(reward) is not float or not math.isfinite(reward):
            raise GarbageError(f"{reward!r:.80} as a reward")
    return rewards
