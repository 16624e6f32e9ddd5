"""The reward `code`: the share of a row's tests that a response's program passes, or whether all pass.

Invariants: the program runs in a sandbox and none of its output is a verdict: outputs are compared here, and
asserts run in another sandbox; a sandbox that does not work is Unscorable, never a reward; a program that
exceeds its limits is scored like any other.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from protocol.rewards.kinds import CodeReward
from workers.reward.kinds.code_rows import Asserts, Calls, Pairs, RowTests, read_tests
from workers.reward.kinds.code_text import is_output, program_in
from workers.reward.kinds.interface import Place, Unscorable
from workers.sandbox.box import Box
from workers.sandbox.chosen_box import Choice, open_box
from workers.sandbox.job import Job, ProgramLimits, ProgramOutcome, SandboxBroken

MOST_SOURCE_CHARS = 256_000
"""Of a program; a longer one scores 0."""
MOST_LATE = 2
"""Tests of a program that may exceed a time limit; then the rest are not run, and count as failed."""

QUEUE_SHARE = 0.5
"""A program that waited for a core for a larger share of its time before its wall limit runs again, alone."""
Run = Callable[[bool], Awaitable[ProgramOutcome]]


@dataclass(slots=True)
class Budget:
    """The time that all tests of a program may use together."""

    left_s: float
    late: int = 0

    def spend(self, outcome: ProgramOutcome) -> None:
        """Subtract a run's time; waiting for a core does not count, as other programs cause it."""
        self.left_s -= max(outcome.cpu_s, outcome.wall_s - outcome.waited_s)
        self.late += outcome.limit in ("cpu", "wall")

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0 or self.late >= MOST_LATE


def make(options: CodeReward, place: Place) -> Callable[..., Awaitable[float]]:
    """An async function of one response. Raises: ConfigError if the sandbox cannot be had."""
    choice: Choice = place.sandbox
    with ThreadPoolExecutor(1) as thread:  # perhaps below an event loop that runs
        python = thread.submit(asyncio.run, _probe(choice)).result()
    box = Box("limits" if choice == "limits" else "bubblewrap", python=python)

    async def score(completion: str, **columns: Any) -> float:
        tests = read_tests(columns, options.tests)
        source = program_in(completion)
        if source is None or not source.strip() or len(source) > MOST_SOURCE_CHARS:
            return 0.0
        try:
            passed = await verdicts(box, source, tests, options)
        except SandboxBroken as error:
            raise Unscorable(str(error)) from None
        share = sum(passed) / len(passed)
        return share if options.credit == "fraction" else float(share == 1.0)

    return score


async def _probe(choice: Choice) -> str:
    async with await open_box(choice) as box:
        return box.python


async def verdicts(box: Box, source: str, tests: RowTests, options: CodeReward) -> list[bool]:
    """Whether a program passes each test, in their order.

    With `credit: all`, tests after the first failed pair are not run. Raises: SandboxBroken, Unscorable if
    the tests themselves are broken.
    """
    if isinstance(tests, Pairs):
        return await _of_pairs(box, source, tests, options)
    return await _of_python(box, source, tests, options)


async def _of_pairs(box: Box, source: str, tests: Pairs, options: CodeReward) -> list[bool]:
    budget, limits, passed = Budget(options.total_s), _limits(options), []
    pairs = list(zip(tests.inputs, tests.outputs, strict=True))[: options.max_tests or None]
    for text, expected in pairs:
        job = Job("run", {"source": source}, text.encode("utf-8", "surrogateescape"), limits)
        outcome = await _fairly(lambda is_alone, job=job: box.run(job, is_alone=is_alone))
        budget.spend(outcome)
        printed = outcome.stdout.decode("utf-8", "replace")
        passed.append(outcome.ended_well and is_output(printed, expected, options.tolerance))
        if budget.is_spent or (not passed[-1] and options.credit == "all"):
            break
    return passed + [False] * (len(pairs) - len(passed))


async def _fairly(run: Run) -> ProgramOutcome:
    """The outcome of a program, run again alone if other programs kept it from a core."""
    outcome = await run(False)
    if outcome.limit == "wall" and outcome.waited_s > QUEUE_SHARE * outcome.wall_s:
        return await run(True)
    return outcome


async def _of_python(box: Box, source: str, tests: Asserts | Calls, options: CodeReward) -> list[bool]:
    program = Job("serve", {"source": source}, limits=_limits(options))
    asking = ProgramLimits(
        cpu_s=options.cpu_s, wall_s=options.wall_s + 5, memory_mb=options.memory_mb, output_bytes=16 << 20
    )
    asker = Job("ask", _orders(tests, options), limits=asking)
    told: ProgramOutcome | None = None

    async def run(is_alone: bool) -> ProgramOutcome:
        nonlocal told
        told, outcome = await box.run_pair(asker, program, is_alone=is_alone)
        return outcome

    await _fairly(run)
    assert told is not None
    lines = list(_lines(told))
    count = next((line["count"] for line in lines if "count" in line), 0)
    error = next((line["error"] for line in lines if "error" in line), "")
    if error or not count:
        said = error or told.stderr.decode(errors="replace").strip()[-500:] or "They assert nothing."
        raise Unscorable(f"The tests of the row cannot be run: {said}")
    passed = [line["passed"] for line in lines if "passed" in line][:count]
    return passed + [False] * (count - len(passed))


def _orders(tests: Asserts | Calls, options: CodeReward) -> dict[str, Any]:
    most = options.max_tests or None
    if isinstance(tests, Asserts):
        texts = list(tests.texts)[:most]
        return {"kind": "asserts", "tests": texts, "setup": tests.setup, "entry": tests.entry}
    pairs = list(zip(tests.arguments, tests.expected, strict=True))[:most]
    calls = [{"arguments": arguments, "expected": expected} for arguments, expected in pairs]
    return {
        "kind": "calls", "function": tests.function, "calls": calls, "tolerance": options.tolerance,
    }  # fmt: skip


def _lines(told: ProgramOutcome) -> Iterator[dict[str, Any]]:
    """The lines of the report as JSON; a limit may have cut off the last one."""
    for line in told.stdout.decode(errors="replace").split("\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _limits(options: CodeReward) -> ProgramLimits:
    return ProgramLimits(
        cpu_s=options.cpu_s, wall_s=options.wall_s, memory_mb=options.memory_mb,
        processes=options.processes, output_bytes=options.output_kb << 10, file_mb=options.file_mb,
    )  # fmt: skip
