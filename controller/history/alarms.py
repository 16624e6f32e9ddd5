"""Rules that find when a run's learning goes wrong: each with its owner, its evidence and a remedy.

Invariants: pure functions of the lines of metrics.jsonl and evaluations.jsonl; a rule compares the newest
lines with fixed limits or with the run's earlier lines, and is silent until it has enough of them; the
healthy quickstart raises no alarm, at any of its steps."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import fsum, inf, isfinite
from statistics import fmean, median

from controller.core.decisions.training.logprob_drift import FRESH_TOKENS, is_other_temperature
from controller.core.state.evaluation_report import is_comparable
from controller.core.state.views.snapshot import Alarm
from controller.history.metric_lines import MetricLines
from strategies.outcomes import EPSILON

Line = Mapping[str, object]
NEWEST = 5  # newest steps that an alarm judges: one bad step raises none
FIRST = 20  # steps that count as the beginning of a run
MOST = 1_000  # newest steps that are held of a live run
MANY = 20  # steps before the newest that define the usual value
ENTROPY_SHARE, GRADIENT_TIMES, MISMATCH_TIMES = 0.2, 10.0, 5.0
MISMATCH_NOISE = 0.01  # nats; below it a rise does not count
MISMATCH_MOST = 0.5  # nats, whatever is usual; 0.3 from random weights at lr 0.01
FRESH_MOST = 0.03  # nats, of tokens sampled by exactly the trained weights; another precision gives 0.0001
ENGINE = ("engine/temperature", "engine/temperature_error", "engine/fresh_kl", "engine/fresh_tokens")
KEYS = (
    *ENGINE, "entropy", "grad_norm", "groups/equal_advantages", "groups/equal_rewards", "mismatch_kl",
    "phase/scoring", "response_length/cut", "response_length/mean", "reward/mean", "reward/std",
    "skipped_steps", "staleness/max", "step", "time_s", "tokens/aborted", "tokens/generated", "tokens/lost",
    "tokens/masked_share", "turns/mean",
)  # fmt: skip
"""All keys of metrics.jsonl that a rule reads."""
CUT_SHARE, LENGTH_TIMES, LOST_SHARE = 0.25, 3.0, 0.25
MASKED_SHARE = 0.9  # of tokens; masks are meant for a few responses
EQUAL_SHARE = 0.9  # of groups; that of the quickstart is 0.7 at most: it solves most prompts at last
SCORING_SHARE, LESS_SCORING = 0.25, 0.15  # of the time; that of the quickstart is 0.05 at most
SCORING_S = 1.0  # of a step; less is the way to a worker and back, which no further process shortens
LESS = 0.02  # reward: a change that counts as none
LOST_REWARD = 0.15  # of the best; the noise of a small run is a fifth of it
FALLS = 3  # evaluations in a row
MOST_VALUE = 1e100  # of a metric: a trainer may report any finite number, but sums have to be finite, too
RESPONSE_LIMITS = (
    "rollout.max_response_tokens (of an agent agent.max_turns, agent.max_tokens or agent.max_turn_tokens, "
    "whichever ended its episodes: the metrics ending/turns, ending/context and so on count them)"
)
"""The keys that bound a response, as remedies name them."""


def alarms(
    lines: Sequence[Line], evaluations: Sequence[Line] = (), *, bound: int | None = None
) -> list[Alarm]:
    """Alarms that hold after the last line, the worst first. `bound`: the run's max_staleness."""
    found: list[Alarm] = []
    oldest = max(_last(lines, "staleness/max", NEWEST), default=0.0)
    if bound is not None and oldest > bound:
        evidence = f"a trajectory was {oldest:g} versions old, and the bound is {bound}"
        remedy = "The strategy does not promise the bound; staleness.strategy=staleflow does."
        found.append(Alarm("bound broken", "staleness", evidence, remedy))
    for name, owner, rule, remedy in RULES:
        if evidence := rule(lines):
            found.append(Alarm(name, owner, evidence, remedy))
    if evidence := _is_hacked(lines, evaluations):
        remedy = "Read samples of high reward (launch.py samples): does the reward see what you mean?"
        found.append(Alarm("reward hacking suspected", "reward", evidence, remedy))
    return found


def watched(lines: Sequence[Line]) -> list[Line]:
    """The lines that have to be held to judge a live run: the first FIRST and the newest MOST."""
    return [*lines[:FIRST], *lines[max(FIRST, len(lines) - MOST) :]]


def _skipped(lines: Sequence[Line]) -> str:
    skipped = sum(_last(lines, "skipped_steps", NEWEST))
    return f"{skipped:g} optimizer steps were skipped in the last {NEWEST} steps" if skipped else ""


def _flat_rewards(lines: Sequence[Line]) -> str:
    """Whether there is nothing to learn from: by rewards, or by advantages of turns if there are any."""
    if trained := _last(lines, "groups/equal_advantages", NEWEST):
        if len(trained) < NEWEST or fmean(trained) <= EQUAL_SHARE:
            return ""
        return f"in {fmean(trained):.0%} of the groups of the last {NEWEST} steps all turns count alike"
    spread, equal = _last(lines, "reward/std", NEWEST), _last(lines, "groups/equal_rewards", NEWEST)
    if len(spread) == NEWEST and max(spread) <= EPSILON:
        return f"all rewards of the last {NEWEST} steps are {_last(lines, 'reward/mean', 1)[0]:g}"
    if len(equal) == NEWEST and fmean(equal) > EQUAL_SHARE:
        return f"in {fmean(equal):.0%} of the groups of the last {NEWEST} steps all rewards are equal"
    return ""


def _masked(lines: Sequence[Line]) -> str:
    shares = _last(lines, "tokens/masked_share", NEWEST)
    if len(shares) < NEWEST or fmean(shares) <= MASKED_SHARE:
        return ""
    return f"{fmean(shares):.0%} of the tokens of the last {NEWEST} steps are left out of the loss"


def _collapsed(lines: Sequence[Line]) -> str:
    """Whether entropy has collapsed: it falls in every run that learns, so reward has to fall with it.

    The first entropy is a mean of only NEWEST steps, as a far too large learning rate destroys it at once.
    """
    entropy, reward = _all(lines, "entropy"), _all(lines, "reward/mean")
    if len(entropy) < 2 * NEWEST or len(reward) < 2 * NEWEST:
        return ""
    first, now = fmean(entropy[:NEWEST]), fmean(entropy[-NEWEST:])
    best = max(map(fsum, zip(*(reward[i:] for i in range(NEWEST)), strict=False))) / NEWEST
    lost = best - fmean(reward[-NEWEST:])
    if now >= ENTROPY_SHARE * first or lost < max(LESS, LOST_REWARD * abs(best)):
        return ""
    return f"entropy is {now:.3g}, at first {first:.3g}; reward is {lost:.3g} below its best"


def _drifted(lines: Sequence[Line]) -> str:
    """Whether engine and trainer differ in their policy, also from the first step on."""
    newest = _last(lines, "mismatch_kl", NEWEST)
    if len(newest) == NEWEST and median(newest) > MISMATCH_MOST:
        return f"mismatch_kl is {median(newest):.3g} nats in the last {NEWEST} steps"
    return _is_at_odds(lines) or _risen(lines, "mismatch_kl", MISMATCH_TIMES, least=MISMATCH_NOISE)


def _is_at_odds(lines: Sequence[Line]) -> str:
    """Whether the newest tokens from exactly the trained weights show a mismatch of engine and trainer."""
    tokens = _column(lines, "engine/fresh_tokens")
    told = (place for place in range(len(lines) - 1, -1, -1) if (tokens[place] or 0.0) >= FRESH_TOKENS)
    place = next(told, None)
    found = {} if place is None else _engine(lines[place])
    if is_other_temperature(found):
        return f"the engine samples at {found['engine/temperature']:.2f} times the trainer's temperature"
    if (kl := found.get("engine/fresh_kl", 0.0)) > FRESH_MOST:
        return f"engine and trainer are {kl:.2g} nats apart on tokens that the same version sampled"
    return ""


def _engine(line: Line) -> dict[str, float]:
    """The metrics of a step about its engine that are numbers."""
    told = {key: _one(line, key) for key in ENGINE}
    return {key: value for key, value in told.items() if value is not None}


def _jumped(lines: Sequence[Line]) -> str:
    return _risen(lines, "grad_norm", GRADIENT_TIMES, least=0.0, is_usual=lambda norm: norm > 0.0)


def _risen(
    lines: Sequence[Line],
    key: str,
    times: float,
    *,
    least: float,
    is_usual: Callable[[float], bool] = isfinite,
) -> str:
    """Whether a metric is `times` what was usual. `is_usual`: which earlier values say what that is.

    A step whose rewards are all equal has no gradient, so a norm of 0 says nothing of the usual one.
    """
    values = _all(lines, key)
    before = [value for value in values[:-NEWEST] if is_usual(value)][-MANY:]
    newest = values[-NEWEST:]
    if len(before) < MANY:
        return ""
    usual, now = median(before), median(newest)
    if now <= max(times * usual, least):
        return ""
    return f"{key} is {now:.3g} in the last {NEWEST} steps, before it was {usual:.3g}"


def _cut(lines: Sequence[Line]) -> str:
    shares = _last(lines, "response_length/cut", NEWEST)
    if len(shares) < NEWEST or fmean(shares) <= CUT_SHARE:
        return ""
    lengths, turns = (_column(lines[-NEWEST:], key) for key in ("response_length/mean", "turns/mean"))
    if all(length == (answers or 1) for length, answers in zip(lengths, turns, strict=True)):
        return ""  # answers of one token, the most that is allowed
    return f"{fmean(shares):.0%} of the responses did not end by themselves"


def _runs_away(lines: Sequence[Line]) -> str:
    lengths = _all(lines, "response_length/mean")
    if len(lengths) < 2 * FIRST:
        return ""
    first, now = fmean(lengths[:FIRST]), fmean(lengths[-NEWEST:])
    reward = _all(lines, "reward/mean")
    is_better = fmean(reward[-NEWEST:]) > fmean(reward[-FIRST:]) + LESS if len(reward) >= FIRST else False
    if now <= LENGTH_TIMES * first or is_better:
        return ""
    return f"responses have {now:.0f} tokens, at first {first:.0f}, and reward does not rise"


def _wasted(lines: Sequence[Line]) -> str:
    keys = ("tokens/aborted", "tokens/lost")
    if len(lines) <= NEWEST:
        return ""
    made = _grown(lines, "tokens/generated")
    wasted = sum(_grown(lines, key) for key in keys)
    if made <= 0 or wasted / made <= LOST_SHARE:
        return ""
    return f"{wasted / made:.0%} of the tokens of the last {NEWEST} steps were given up or lost"


def _slow_rewards(lines: Sequence[Line]) -> str:
    """Whether steps wait for rewards alone; holds until the share is under LESS_SCORING again."""
    newest = 0.0
    shares, waits = [share or 0.0 for share in _column(lines, "phase/scoring")], _waits(lines)
    for end in range(len(lines), NEWEST - 1, -1):
        window = slice(end - NEWEST, end)
        share, told = fmean(shares[window]), [wait for wait in waits[window] if wait is not None]
        newest = share if end == len(lines) else newest
        if share > SCORING_SHARE and fmean(told or [inf]) >= SCORING_S:
            return f"for {newest:.0%} of the last {NEWEST} steps' time only rewards were missing"
        if share <= LESS_SCORING:
            break
    return ""


def _waits(lines: Sequence[Line]) -> list[float | None]:
    """Seconds of each step in which only rewards were missing; None if the step's duration is not known.

    It is not known for the first line, and for the first one behind a gap of lines that are not held.
    """
    told = list(zip(*(_column(lines, key) for key in ("step", "time_s", "phase/scoring")), strict=True))
    found: list[float | None] = [None] * min(1, len(told))
    for (before, began, _), (step, ended, share) in pairwise(told):
        follows = before is None or step is None or step == before + 1
        if began is None or ended is None or not follows:
            found.append(None)
        else:
            found.append((share or 0.0) * (ended - began))
    return found


Rule = Callable[[Sequence[Line]], str]
RULES: tuple[tuple[str, str, Rule, str], ...] = (
    ("skipped steps", "trainer", _skipped, "Loss or gradient is not finite: lower trainer.lr, see its log."),
    (
        "mismatch",
        "trainer",
        _drifted,
        "Lower trainer.lr or max_staleness; compare weights, temperature and dtype of engine and trainer.",
    ),
    ("gradient", "trainer", _jumped, "Lower trainer.lr or trainer.grad_clip; look at the last samples."),
    (
        "entropy collapse",
        "trainer",
        _collapsed,
        "Go back to a checkpoint (run.resume) with a lower trainer.lr.",
    ),
    (
        "no signal",
        "reward",
        _flat_rewards,
        "Prompts are too easy or too hard, or the reward sees no response.",
    ),
    (
        "masked",
        "trainer",
        _masked,
        f"Turn trainer.mask_truncated off, or raise {RESPONSE_LIMITS}. If it is off already, the engine's "
        "logprobs are not finite.",
    ),
    (
        "slow rewards",
        "reward",
        _slow_rewards,
        "Raise reward.workers, reward.processes or reward.concurrency, or make the reward function faster.",
    ),
    (
        "cut responses",
        "rollout",
        _cut,
        f"Raise {RESPONSE_LIMITS}, or ask for shorter answers.",
    ),
    ("length", "rollout", _runs_away, "Reward what is short, or see trainer.loss_aggregation."),
    ("wasted tokens", "rollout", _wasted, "See `launch.py story` of a group that was given up."),
)
"""Name, owner, rule and remedy of each alarm; the worst first."""


def _is_hacked(lines: Sequence[Line], evaluations: Sequence[Line]) -> str:
    """Whether the reward of training rises while the result of held-out prompts falls."""
    alike = [line for line in evaluations if is_comparable(line, evaluations[-1])]
    held_out = _all(alike, "pass@1") or _all(alike, "reward/mean")
    newest = held_out[-FALLS - 1 :]
    reward = _all(lines, "reward/mean")
    if len(newest) <= FALLS or len(reward) < 2 * FIRST:
        return ""
    rises = fmean(reward[-FIRST:]) - fmean(reward[-2 * FIRST : -FIRST])
    is_falling = all(later < earlier for earlier, later in pairwise(newest))
    if rises <= LESS or not is_falling:
        return ""
    return (
        f"reward rose by {rises:.3g} while the held-out figure fell {FALLS} times, from {newest[0]:.3g} to "
        f"{newest[-1]:.3g}"
    )


def _all(lines: Sequence[Line], key: str) -> list[float]:
    return [value for value in _column(lines, key) if value is not None]


def _last(lines: Sequence[Line], key: str, count: int) -> list[float]:
    return _all(lines[-count:], key)


def _grown(lines: Sequence[Line], key: str) -> float:
    """Growth of a total over the newest steps."""
    before, now = _one(lines[-NEWEST - 1], key), _one(lines[-1], key)
    return 0.0 if now is None or before is None else now - before


def _column(lines: Sequence[Line], key: str) -> Sequence[float | None]:
    """A number of each line; None where it has none."""
    if isinstance(lines, MetricLines):
        return lines.column(key, most=MOST_VALUE)
    return [_one(line, key) for line in lines]


def _one(line: Line, key: str) -> float | None:
    """A number of a line; None where it has none."""
    value = line.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(max(min(value, MOST_VALUE), -MOST_VALUE))
