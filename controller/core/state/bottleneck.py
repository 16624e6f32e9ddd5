"""Names the bottleneck of a run in one sentence, from the seconds that it waited for each of its parts.

Invariants: pure; each moment of a run belongs to exactly one cause (`waiting_for.awaited`); time without a
worker that every step needs counts as start-up, which is not idling, and neither is a pause.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from controller.config.models import Config

Cause = Literal[
    "start-up", "paused", "training", "pace", "scoring", "weights", "data", "cap", "rollout", "environments"
]
NO_IDLING = ("start-up", "paused")  # causes that do not count as idle time
IDLE_WORTH_NAMING = 0.15  # less idle time than this share is not worth a change of settings
UNUSED = 0.3  # share of idle time from which more instances would not help
START_WORTH_NAMING = 0.5  # share of a run from which start-up is named as the bottleneck,
START_WORTH_NAMING_S = 5.0  # if it took longer than this


class Figures(NamedTuple):
    """The figures that a verdict is based on."""

    steps: int
    spent_s: Mapping[str, float]  # by Cause
    rollout_idle: float | None  # share of the instances' time; None where nothing is generated
    cap: float = 0.0  # batches that may be in the system now


def verdict(figures: Figures, config: Config) -> str:
    """One sentence: what bounds the run, and the setting to change."""
    if not figures.steps:
        return "No train step was finished, so there is no bottleneck to name."
    start_s = figures.spent_s.get("start-up", 0.0)
    all_s = sum(figures.spent_s.values())
    what, how = _steady(figures, config)
    if start_s > max(START_WORTH_NAMING * all_s, START_WORTH_NAMING_S):
        else_ = f"apart from it by {what}" if what else "apart from it balanced"
        return f"Bound by the start of workers, {start_s / all_s:.0%} of {all_s:.0f} s; {else_}: {how}"
    return f"Bound by {what}: {how}" if what else f"Balanced: {how}"


def _steady(figures: Figures, config: Config) -> tuple[str, str]:
    """What bounds the run after start-up ("" if it is balanced), and what to do about it."""
    spent_s = {cause: s for cause, s in figures.spent_s.items() if cause not in NO_IDLING}
    total_s = max(sum(spent_s.values()), 1e-9)
    share = {cause: s / total_s for cause, s in spent_s.items()}
    idle, rollout = 1.0 - share.pop("training", 0.0), figures.rollout_idle
    waits = sorted(share, key=lambda cause: -share[cause])
    if rollout is None:
        words = f"the trainer was idle {idle:.0%} of the time"
        if idle < IDLE_WORTH_NAMING:
            return "training", f"{words}; raise trainer.ranks."
        return "the data", f"{words}; raise reward.workers or reward.processes, which read and encode it."
    words = f"the trainer was idle {idle:.0%} of the time, rollout {rollout:.0%}"
    if idle < IDLE_WORTH_NAMING or not waits:
        if rollout < IDLE_WORTH_NAMING:
            return "", f"{words}; more of both is the only way to be faster."
        return "training", f"{words}; raise trainer.ranks, or lower rollout.instances."
    cause = waits[0]
    is_unused = rollout >= IDLE_WORTH_NAMING and cause in ("rollout", "cap")
    if is_unused and config.staleness.max_staleness and 1.0 - idle > 2 * share[cause]:
        return "training", f"{words}; raise trainer.ranks, or lower rollout.instances."
    if len(waits) > 1 and share[waits[1]] > share[cause] / 2:
        second = waits[1]
        words += f" (it waited {share[cause]:.0%} for {WAITS[cause]}"
        words += f", {share[second]:.0%} for {WAITS[second]})"
    elif share[cause] < idle - 0.05:
        words += f" (it waited {share[cause]:.0%} for {WAITS[cause]})"
    name, advice = _advice(cause, figures, config)
    return name, f"{words}; {advice}."


WAITS = {
    "rollout": "responses", "scoring": "rewards", "weights": "new weights to be published and pulled",
    "data": "rows of the data", "cap": "room for more groups", "pace": "an even pace",
    "environments": "agents and their environments",
}  # fmt: skip


def _advice(cause: str, figures: Figures, config: Config) -> tuple[str, str]:
    """The name of a cause, and advice that shortens it."""
    staleness, reward = config.staleness, config.reward
    rollout = figures.rollout_idle or 0.0
    bound = staleness.max_staleness
    if bound == 0 and cause in ("rollout", "cap", "weights") and rollout >= IDLE_WORTH_NAMING:
        return "the synchronous order", "raise staleness.max_staleness"
    is_capped = figures.cap < 0.9 * (bound + 1)
    more = "staleness.in_flight_batches" if is_capped else f"staleness.max_staleness (now {bound})"
    match cause:
        case "scoring":
            if not reward.workers:
                more = f"attach more reward workers, or raise their reward.processes (now {reward.processes})"
            else:
                now = f"{reward.workers} x {reward.processes}"
                more = f"raise reward.processes or reward.workers (now {now})"
            return "scoring", f"{more}, or reward.concurrency for an async function"
        case "weights":
            return "new weights", (
                f"publish less (trainer.lora), or raise staleness.max_staleness (now {bound}), so that other "
                "groups are generated meanwhile"
            )
        case "data":
            encoders = "raise reward.workers" if reward.workers else "attach more reward workers"
            return "the data", f"make its source faster, or {encoders}, which encode it"
        case "environments":
            ahead = config.agent.prepare_groups or config.trainer.batch_groups
            return "the environments of agents", (
                f"make them faster, or raise agent.prepare_groups (now {ahead}) or, if all places are taken, "
                f"agent.concurrency (now {config.agent.concurrency}) or agent.workers"
            )
        case "pace":
            return "its own pace", "lower staleness.pace"
        case "cap":
            return "the groups in flight", f"raise {more}, so that more responses run at a time"
        case _:
            pass
    if rollout >= UNUSED:
        return "the longest responses", f"raise {more}, so that more responses run beside them"
    longer = " or staleness.max_staleness" if bound < 2 else ""
    instances = "raise rollout.instances" if config.rollout.instances else "attach more rollout workers"
    raised = longer if config.rollout.instances or not longer else ", or raise staleness.max_staleness"
    return "rollout", f"{instances}{raised}"
