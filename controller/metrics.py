"""Accounts of the run: where tokens and time went, and the line that each train step adds to metrics.jsonl.

Invariants: generated = trained + aborted + filtered + lost + evaluated + in_flight, at every event; idle
shares are of the time since the last line; staleness is train_version minus the version of a trajectory's
oldest token, never an estimate.
"""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from controller.evaluation_line import headline, is_better
from controller.groups import Group
from controller.snapshot import TokenLedger

ROLLOUT_ONLY = (
    "reward/", "staleness/", "partial/", "cost_model/", "idle/rollout", "response_length/cut",
    "tokens/reprefilled", "time_s/pull", "time_s/publish",
)  # fmt: skip
IDLE_WORTH_NAMING = 0.15  # below this share of idle time nobody would change a setting


def quantile(sorted_values: Sequence[int], q: float) -> int:
    """The value at share q of a sorted list (nearest rank)."""
    return sorted_values[min(len(sorted_values) - 1, int(q * len(sorted_values)))]


def batch_metrics(groups: Sequence[Group], train_version: int) -> dict[str, object]:
    """What can be said of a batch from ids, lengths, versions and rewards alone."""
    members = [member for group in groups for member in group.kept]
    rewards = [reward for group in groups for reward in group.rewards]
    lengths = sorted(member.response_tokens for member in members)
    mean = fmean(rewards)
    variance = fmean((reward - mean) ** 2 for reward in rewards)  # pstdev takes four times as long
    ages = [train_version - member.segments[0].policy_version for member in members if member.segments]
    return {
        "reward/mean": mean,
        "reward/std": sqrt(variance),
        "response_length/mean": fmean(lengths),
        "response_length/p50": quantile(lengths, 0.5),
        "response_length/p99": quantile(lengths, 0.99),
        "response_length/max": lengths[-1],
        "response_length/cut": sum(member.ending == "length" for member in members) / len(members),
        "staleness/mean": fmean(ages) if ages else 0.0,
        "staleness/max": max(ages, default=0),
        "staleness/hist": {str(age): count for age, count in sorted(Counter(ages).items())},
        "partial/share": sum(len({s.policy_version for s in m.segments}) > 1 for m in members) / len(members),
    }


def without_rollout(line: dict[str, object]) -> dict[str, object]:
    """A line or a summary without what means nothing where responses come out of the data."""
    return {key: value for key, value in line.items() if not key.startswith(ROLLOUT_ONLY)}


class BusyTime:
    """Seconds that something was busy, out of seconds that it existed."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.total_s = 0.0

    def add(self, elapsed_s: float, *, busy: float, total: float = 1.0) -> None:
        """Account an interval in which `busy` of `total` units worked."""
        self.busy_s += elapsed_s * busy
        self.total_s += elapsed_s * total

    @property
    def idle(self) -> float:
        """Share of the time that was idle; 0 before anything was accounted."""
        return 1.0 - self.busy_s / self.total_s if self.total_s > 0 else 0.0


class Accounts:
    """Running totals, fed by the core."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.generated = self.trained = self.aborted = self.filtered = self.lost = self.evaluated = 0
        self.in_flight = 0
        self.evaluations: dict[str, dict[str, object]] = {}  # "first", "best", "last": headlines of lines
        self.counts: Counter[str] = Counter()  # rare things: respawns, reward failures, prompts refused ...
        self.violations = (
            0  # trained trajectories older than the bound; not 0 only where the rules promise none
        )
        self.ages: dict[int, int] = {}  # trained trajectories by staleness
        self.reprefilled = 0  # tokens whose KV was made again: resumed, moved, interrupted
        self.is_ending = False
        self.reward_by_step: list[float] = []
        self._trainer, self._rollout = BusyTime(), BusyTime()
        self._trainer_total, self._rollout_total = BusyTime(), BusyTime()
        self._first_step_s: float | None = None
        self._last_line_s = 0.0
        self._last_tokens = 0
        self._seconds: Counter[str] = Counter()
        self._now: float | None = None

    def advance(self, now: float, *, trainer_busy: bool, ready: int, busy: int) -> None:
        """Account the time since the last call, in the state that held during it (instances ready, and those
        of them that had work); starting up is not idling."""
        if self._now is not None and now > self._now:
            elapsed = now - self._now
            for rollout in (self._rollout, self._rollout_total):
                rollout.add(elapsed, busy=busy, total=ready)
            for trainer in (self._trainer, self._trainer_total):
                trainer.add(elapsed, busy=trainer_busy)
        self._now = now

    def spend(self, what: str, seconds: float) -> None:
        """Add to a `time_s/*` entry of the next line."""
        self._seconds[what] += seconds

    def take(self, tokens: int, *, is_expected: bool) -> None:
        """Tokens came in: of a live attempt, or too late (which is nobody's loss once the run ends)."""
        self.generated += tokens
        if is_expected:
            self.in_flight += tokens
        elif self.is_ending:
            self.aborted += tokens
        else:
            self.lost += tokens

    def close(self, group: Group, end: str) -> None:
        """A group leaves the system: its tokens were "trained", "aborted", "filtered" or "evaluated"."""
        tokens = group.response_tokens
        self.in_flight -= tokens
        setattr(self, end, getattr(self, end) + tokens)

    def drop(self, tokens: int) -> None:
        """A spare response was not needed."""
        self.in_flight -= tokens
        self.aborted += tokens

    def consume(self, ages: Sequence[int]) -> None:
        """A batch with trajectories of these ages, in versions, goes to the trainer."""
        for age in ages:
            self.ages[age] = self.ages.get(age, 0) + 1
        self.violations += sum(age > self.max_staleness for age in ages)

    def evaluated_as(self, line: dict[str, object]) -> None:
        """An evaluation is complete, with this line."""
        found = headline(line)
        self.counts["evaluations/complete"] += 1
        self.evaluations.setdefault("first", found)
        if is_better(found, self.evaluations.setdefault("best", found)):
            self.evaluations["best"] = found
        self.evaluations["last"] = found

    def tokens(self) -> TokenLedger:
        """The token ledger now."""
        return TokenLedger(**{name: getattr(self, name) for name in TokenLedger.__slots__})

    def step_line(
        self, now: float, *, step: int, batch: dict[str, object], trainer: dict[str, float]
    ) -> dict[str, object]:
        """The line of metrics.jsonl for a finished train step."""
        elapsed = max(now - self._last_line_s, 1e-9)
        trajectories = batch.pop("trajectories")
        assert isinstance(trajectories, int)
        self.reward_by_step.append(float(batch["reward/mean"]))  # type: ignore[arg-type]
        line: dict[str, object] = {
            "step": step,
            "policy_version": step,
            "time_s": round(now, 3),
            **batch,
            **trainer,
        }
        line |= {
            f"tokens/{name}": getattr(self, name)
            for name in ("generated", "trained", "aborted", "filtered", "lost", "evaluated")
        }
        line["tokens/in_flight"] = self.in_flight
        line["tokens/reprefilled"] = self.reprefilled
        tokens = self.generated if self._rollout_total.total_s else self.trained
        line["throughput/tokens_per_s"] = (tokens - self._last_tokens) / elapsed
        line["throughput/trajectories_per_s"] = trajectories / elapsed
        line["idle/trainer"], line["idle/rollout"] = self._trainer.idle, self._rollout.idle
        line |= {f"time_s/{name}": self._seconds[name] for name in ("wait", "train", "publish", "pull")}
        self._first_step_s = now if self._first_step_s is None else self._first_step_s
        self._last_line_s, self._last_tokens = now, tokens
        self._trainer, self._rollout = BusyTime(), BusyTime()
        self._seconds.clear()
        return line

    def verdict(self) -> str:
        """One sentence: what the run waited for most, and the one setting to change."""
        trainer, rollout = self._trainer_total.idle, self._rollout_total.idle
        if not self.reward_by_step:
            return "No train step was finished, so there is no bottleneck to name."
        if not self._rollout_total.total_s:
            is_busy = trainer < IDLE_WORTH_NAMING
            what, advice = ("training", "trainer.ranks") if is_busy else ("the data", "reward.workers")
            return f"Bound by {what}: the trainer was idle {trainer:.0%} of the time; raise {advice}."
        shares = f"the trainer was idle {trainer:.0%} of the time, rollout {rollout:.0%}"
        if max(trainer, rollout) < IDLE_WORTH_NAMING:
            return f"Balanced: {shares}; more of both is the only way to be faster."
        if trainer >= rollout:
            advice = "raise rollout.instances" + (
                " or staleness.max_staleness" if self.max_staleness < 2 else ""
            )
            return f"Bound by rollout: {shares}; {advice}."
        if self.max_staleness == 0:
            return f"Bound by the synchronous order: {shares}; raise staleness.max_staleness."
        return f"Bound by training: {shares}; raise trainer.ranks, or lower rollout.instances."

    def summary(self, now: float) -> dict[str, object]:
        """Totals for summary.json."""
        rewards = self.reward_by_step
        span = min(10, max(1, len(rewards) // 2))
        ledger = self.tokens()
        return {
            "time_s": round(now, 3),
            "steps": len(rewards),
            "first_step_s": self._first_step_s,
            "reward/first_steps": fmean(rewards[:span]) if rewards else None,
            "reward/last_steps": fmean(rewards[-span:]) if rewards else None,
            "staleness/violations": self.violations,
            "staleness/max_allowed": self.max_staleness,
            "staleness/mean": sum(a * n for a, n in self.ages.items()) / max(1, sum(self.ages.values())),
            "staleness/max": max(self.ages, default=0),
            "staleness/hist": {str(age): count for age, count in sorted(self.ages.items())},
            "tokens/reprefilled": self.reprefilled,
            **{f"tokens/{name}": getattr(ledger, name) for name in TokenLedger.__slots__},
            "idle/trainer": self._trainer_total.idle,
            "idle/rollout": self._rollout_total.idle,
            **{f"evaluation/{which}": line for which, line in self.evaluations.items()},
            "counts": dict(sorted(self.counts.items())),
            "verdict": self.verdict(),
        }
