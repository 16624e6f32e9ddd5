"""Alarms of workers that keep failing, each with its owner, evidence and remedy.

Invariants: pure functions of the core that no decision reads, so any moment of a run can be judged again; a
single failure raises no alarm, and a run begins without any; a raised alarm stays until its cause has halved.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from controller.core.state.recent_failures import STEPS, WINDOW_S, Failure
from controller.core.state.views.snapshot import Alarm

if TYPE_CHECKING:
    from controller.core.core import Core

MOST_CHARS = 200  # of a reason
MANY = 3  # workers that are named
KILLED = "was killed by signal 9"  # as the kernel does with what takes too much memory


def alarms_of(core: "Core") -> list[Alarm]:
    """All alarms that hold now, the worst first."""
    state, failures = core.state, core.state.failures
    if state.finished:
        return []
    found: list[Alarm] = []
    if again := failures.respawns.too_many(state.awake_s):
        evidence = f"{len(again)} respawns in {WINDOW_S:.0f} s: {_who(again)}; the last {_why(again)}"
        remedy = "Read the log of the one that is named first (logs/NAME.log)."
        if any(KILLED in failure.why for failure in again):  # nobody else said why
            remedy = f"{remedy[:-1]}; is the machine out of memory?"
        found.append(Alarm("respawn storm", "workers", evidence, remedy))
    if failed := failures.pulls.too_many(state.awake_s):
        evidence = f"{len(failed)} pulls failed in {WINDOW_S:.0f} s: {_who(failed)}; the last {_why(failed)}"
        remedy = "Look at the network, and at the room in weights.directory; see docs/weights.md."
        found.append(Alarm("failing pulls", "rollout", evidence, remedy))
    if (preempted := failures.preemptions.too_many) is not None:
        count, trained = preempted
        evidence = f"{count} preemptions for {trained} trained responses in the last {STEPS} steps"
        remedy = "Lower rollout.max_running, or give the engine more KV memory (rollout.vllm.kv_cache_gb)."
        found.append(Alarm("KV preemptions", "rollout", evidence, remedy))
    return found


def _who(failures: Sequence[Failure]) -> str:
    """The workers that failed most often."""
    counted = Counter(failure.who for failure in failures).most_common()
    named = [f"{who} {count} times" if count > 1 else who for who, count in counted[:MANY]]
    more = len(counted) - MANY
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _why(failures: Sequence[Failure]) -> str:
    why = failures[-1].why.strip().splitlines()[:1] or ["without a word"]
    return f"because: {why[0][:MOST_CHARS].rstrip('. ')}"
