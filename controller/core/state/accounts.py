"""Accounts of tokens and time, and the line that each train step adds to metrics.jsonl.

Invariants: generated = trained + aborted + filtered + lost + evaluated + in_flight, at every event; idle
shares are of the time since the last line; staleness is train_version minus the version of a trajectory's
oldest token, never an estimate.
"""

from collections import Counter
from collections.abc import Mapping
from math import fsum
from statistics import fmean
from typing import Literal, NamedTuple

from controller.core.state.agents.episode_figures import EpisodeCounts
from controller.core.state.bottleneck import NO_IDLING, Cause, Figures
from controller.core.state.evaluation_report import headline, is_better, is_comparable
from controller.core.state.transitions import GroupEnd
from controller.core.state.views.snapshot import TOKENS, TokenLedger

ROLLOUT_ONLY = (
    "reward/", "groups/", "staleness/", "partial/", "cost_model/", "idle/rollout", "response_length/cut",
    "tokens/reprefilled", "time_s/pull", "time_s/publish", "source/",
)  # fmt: skip


class Devices(NamedTuple):
    """Number of devices of a run."""

    per_instance: int = 1
    trainer: int = 1


class Stopwatch:
    """Measures the time in which a condition holds."""

    def __init__(self) -> None:
        self.since: float | None = None  # since when the condition holds; None while it does not
        self._total_s = 0.0

    def pause(self, now: float) -> None:
        """The condition does not hold from now on."""
        if self.since is not None:
            self._total_s += now - self.since
            self.since = None

    def take(self, now: float) -> float:
        """Seconds in which the condition held since the last call."""
        self.pause(now)
        total_s, self._total_s = self._total_s, 0.0
        return total_s


def _with_trainer(
    line: dict[str, object], own: Mapping[str, object], trainer: Mapping[str, float]
) -> dict[str, object]:
    """The line with the trainer's metrics, renamed where `line` or `own` has the name."""
    for name, value in trainer.items():
        while name in line or name in own:
            name = f"trainer/{name}"
        line[name] = value
    return line


def without_rollout(line: dict[str, object]) -> dict[str, object]:
    """A line or summary without the keys that have no meaning in supervised training."""
    return {key: value for key, value in line.items() if not key.startswith(ROLLOUT_ONLY)}


class BusyTime:
    """Busy seconds out of all seconds."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.total_s = 0.0

    @property
    def idle(self) -> float:
        """Idle share of the time; 0 before anything was accounted."""
        return 1.0 - self.busy_s / self.total_s if self.total_s > 0 else 0.0


class Accounts:
    """Running totals, fed by the core."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.generated = self.trained = self.aborted = self.filtered = self.lost = self.evaluated = 0
        self.in_flight = 0
        self.given = 0  # tokens given by environments; in no other count
        self.evaluations: dict[str, dict[str, object]] = {}  # "first", "best", "last": headlines of lines
        self.counts: Counter[str] = Counter()  # of rare incidents: respawns, reward failures, refused prompts
        self.violations = 0  # trained trajectories beyond the bound; always 0 with a strict ledger
        self.ages: dict[int, int] = {}  # trained trajectories by staleness
        self.prefilled = self.reused = 0  # prompt tokens that engines computed, and found in their caches
        self._last_prefilled = self._last_reused = 0
        self._episodes = EpisodeCounts()
        self.reprefilled = 0  # tokens whose KV was computed again: resumed, moved or interrupted
        self.is_ending = False
        self.reward_by_step: list[float] = []
        self.spent_s: dict[str, float] = {}  # seconds by bottleneck.Cause
        self._trainer, self._rollout = BusyTime(), BusyTime()
        self._trainer_total, self._rollout_total = BusyTime(), BusyTime()
        self._first_step_s: float | None = None
        self._last_line_s = 0.0
        self._last_tokens = self._last_trained = 0
        self._last_spent_s: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._now = 0.0

    def advance(self, now: float, *, cause: Cause, ready: int, busy: int) -> None:
        """Account the time since the last call to the state that held during it.

        `cause`: what the next step waited for; `ready` and `busy`: instances. Start-up is not idling.
        """
        elapsed, self._now = now - self._now, now
        self.spent_s[cause] = self.spent_s.get(cause, 0.0) + elapsed
        if elapsed > 0 and cause not in NO_IDLING:
            busy_s, ready_s = elapsed * busy, elapsed * ready
            training_s = elapsed if cause == "training" else 0.0
            both = (self._rollout, self._trainer), (self._rollout_total, self._trainer_total)
            for rollout, trainer in both:  # inlined, as it runs at each event
                rollout.busy_s += busy_s
                rollout.total_s += ready_s
                trainer.busy_s += training_s
                trainer.total_s += elapsed

    def spend(self, what: str, seconds: float) -> None:
        """Add to a `time_s/*` entry of the next line."""
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def take(self, tokens: int) -> None:
        """Tokens of a live attempt were reported."""
        self.generated += tokens
        self.in_flight += tokens

    def take_late(self, tokens: int) -> None:
        """Tokens of an ended attempt were reported: lost, or aborted once the run ends."""
        self.generated += tokens
        if self.is_ending:
            self.aborted += tokens
        else:
            self.lost += tokens

    def close(self, tokens: int, end: Literal["trained", GroupEnd]) -> None:
        """Groups leave the system, or start again (`aborted`): count their tokens accordingly."""
        self.in_flight -= tokens
        setattr(self, end, getattr(self, end) + tokens)

    def drop(self, tokens: int) -> None:
        """Count the tokens of a spare response, or of a turn that is taken back, as aborted."""
        self.in_flight -= tokens
        self.aborted += tokens

    def lose(self, tokens: int) -> None:
        """An episode begins again: count its tokens as lost."""
        self.in_flight -= tokens
        self.lost += tokens

    def mask(self, tokens: int) -> None:
        """An episode is masked (`agent.on_limit`): count its tokens as filtered."""
        self.in_flight -= tokens
        self.filtered += tokens

    def consume(self, ages: Mapping[int, int]) -> None:
        """Count the trajectories of a consumed batch. `ages`: staleness -> trajectories."""
        for age, count in ages.items():
            self.ages[age] = self.ages.get(age, 0) + count
            self.violations += count if age > self.max_staleness else 0

    def evaluated_as(self, line: dict[str, object]) -> None:
        """Note the report of an evaluation; it becomes the first if it is not comparable to the last."""
        found = headline(line)
        if not is_comparable(self.evaluations.get("last", found), found):
            self.evaluations.clear()
        self.counts["evaluations/complete"] += 1
        self.evaluations.setdefault("first", found)
        if is_better(found, self.evaluations.setdefault("best", found)):
            self.evaluations["best"] = found
        self.evaluations["last"] = found

    def tokens(self) -> TokenLedger:
        """The token counts now."""
        return TokenLedger(**{name: getattr(self, name) for name in TOKENS})

    def step_line(
        self,
        now: float,
        *,
        step: int,
        batch: dict[str, object],
        trainer: dict[str, float],
        more: dict[str, object],
        devices: Devices,
    ) -> dict[str, object]:
        """The line of metrics.jsonl for a finished train step.

        A metric of the `trainer` whose name the controller uses itself is written as trainer/NAME.
        """
        elapsed = max(now - self._last_line_s, 1e-9)
        trajectories = batch.pop("trajectories")
        reward = batch["reward/mean"]
        assert isinstance(trajectories, int)
        assert isinstance(reward, int | float)
        self.reward_by_step.append(float(reward))
        line: dict[str, object] = {
            "step": step,
            "policy_version": step,
            "time_s": round(now, 3),
            **batch,
        }
        own: dict[str, object] = {
            f"tokens/{name}": getattr(self, name)
            for name in ("generated", "trained", "aborted", "filtered", "lost", "evaluated")
        }
        own |= {"tokens/in_flight": self.in_flight, "tokens/reprefilled": self.reprefilled}
        own |= self._of_episodes() if self.given else {}
        tokens = self.generated if self._rollout_total.total_s else self.trained
        own["throughput/tokens_per_s"] = (tokens - self._last_tokens) / elapsed
        own["throughput/trajectories_per_s"] = trajectories / elapsed
        own |= self._per_device(tokens - self._last_tokens, elapsed, devices)
        own |= self._phases()
        own["idle/trainer"], own["idle/rollout"] = self._trainer.idle, self._rollout.idle
        own |= {
            f"time_s/{name}": self._seconds.get(name, 0.0) for name in ("wait", "train", "publish", "pull")
        }
        own |= more
        line = _with_trainer(line, own, trainer) | own
        self._first_step_s = now if self._first_step_s is None else self._first_step_s
        self._last_line_s, self._last_tokens, self._last_trained = now, tokens, self.trained
        self._last_spent_s = dict(self.spent_s)
        self._trainer, self._rollout = BusyTime(), BusyTime()
        self._seconds.clear()
        return line

    def _per_device(self, tokens: int, elapsed: float, devices: Devices) -> dict[str, object]:
        """Tokens per second generated per rollout device and trained per trainer device, since the last line.

        Rollout devices are those of ready instances, averaged over the time that was not start-up or pause.
        """
        found: dict[str, object] = {
            "throughput/trained_tokens_per_s_per_device": (self.trained - self._last_trained)
            / elapsed
            / devices.trainer
        }
        if self._rollout.total_s > 0:
            ready = self._rollout.total_s / self._trainer.total_s
            per_device = tokens / elapsed / (ready * devices.per_instance)
            found["throughput/tokens_per_s_per_device"] = per_device
        return found

    def _of_episodes(self) -> dict[str, object]:
        return {"tokens/given": self.given, **self._reused(), **self._episodes.take(self.counts)}

    def _reused(self) -> dict[str, object]:
        """Share of prompt tokens, of all turns, that engines found in their caches, since the last line."""
        prefilled, reused = self.prefilled - self._last_prefilled, self.reused - self._last_reused
        self._last_prefilled, self._last_reused = self.prefilled, self.reused
        return {"kv/reused": reused / (reused + prefilled)} if reused + prefilled else {}

    def _phases(self) -> dict[str, object]:
        """Shares of the time since the last line, by cause; their sum is 1."""
        spent = {cause: s - self._last_spent_s.get(cause, 0.0) for cause, s in self.spent_s.items()}
        whole = fsum(spent.values())
        return {f"phase/{cause}": s / whole for cause, s in sorted(spent.items())} if whole > 0 else {}

    def figures(self, *, cap: float) -> Figures:
        """Figures for `bottleneck.verdict`; `cap`: batches that may be in the system."""
        rollout = self._rollout_total
        return Figures(len(self.reward_by_step), self.spent_s, rollout.idle if rollout.total_s else None, cap)

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
            **{f"tokens/{name}": getattr(ledger, name) for name in TOKENS},
            **({"tokens/given": self.given} if self.given else {}),
            "idle/trainer": self._trainer_total.idle,
            "idle/rollout": self._rollout_total.idle,
            **{f"evaluation/{which}": line for which, line in self.evaluations.items()},
            "spent_s": {cause: round(seconds, 3) for cause, seconds in sorted(self.spent_s.items())},
            "counts": dict(sorted(self.counts.items())),
        }
