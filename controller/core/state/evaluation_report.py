"""The report of an evaluation: pass@k, rewards and lengths, in total and by data source.

Invariants: a failed prompt is counted and named, and is in no mean; nothing here decides.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, stdev

from controller.core.state.batches.contributions import scored_parts
from controller.core.state.groups import Group

NAMED = 5  # failures that a report names
DIGITS = 12  # of pass@1 that count: the others depend on the order in which shares were added
ALIKE = ("data_digest", "threshold")  # reports that differ in one of these cannot be compared


@dataclass(frozen=True, slots=True)
class Answered:
    """One held-out prompt and its scored responses, as far as a report needs them."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]  # of an episode, of all its trajectories
    cut: int  # responses cut off by a limit
    versions: dict[int, int]  # policy version -> tokens
    parts: tuple[tuple[str, tuple[float, ...]], ...] = ()  # named rewards, of what each scored

    @classmethod
    def of(cls, group: Group) -> "Answered":
        """From a scored group."""
        versions: Counter[int] = Counter()
        for segment in (segment for member in group.trained for segment in member.segments):
            if not segment.is_given:
                versions[segment.policy_version] += segment.count
        cut = sum(member.ending == "length" for member in group.kept)
        lengths = tuple(group.response_lengths)
        return cls(group.rewards, lengths, cut, dict(versions), scored_parts(group))


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of k responses passes, estimated from `samples`, of which `passed` did.

    The estimate without bias is 1 - C(n - c, k) / C(n, k).

    Raises: ValueError unless 0 <= passed <= samples and 1 <= k <= samples.
    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.
    """
    if not (0 <= passed <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {samples} responses, {passed} passed; expected 0 to {samples} passed.")
    return 1 - comb(samples - passed, k) / comb(samples, k)


def figures(answered: Sequence[Answered], *, samples: int, threshold: float) -> dict[str, object]:
    """Figures of these prompts, each with `samples` responses; only counts if there are none.

    `pass@1/stderr` is the standard error over prompts, None for fewer than two.
    """
    found: dict[str, object] = {"prompts": len(answered), "responses": len(answered) * samples}
    if not answered:
        return found
    passed = [sum(reward >= threshold for reward in prompt.rewards) for prompt in answered]
    for k in _ks(samples):
        found[f"pass@{k}"] = fmean(pass_at_k(samples, count, k) for count in passed)
    shares = [count / samples for count in passed]
    lengths = sorted(length for prompt in answered for length in prompt.lengths)
    found["pass@1/stderr"] = stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else None
    found["reward/mean"] = fmean(reward for prompt in answered for reward in prompt.rewards)
    for name, rewards in sorted(_named_rewards(answered).items()):
        found[f"reward/{name}"] = fmean(rewards)
    found["response_length/mean"] = fmean(lengths)
    found["response_length/max"] = lengths[-1]
    found["response_length/cut"] = sum(prompt.cut for prompt in answered) / len(lengths)
    return found


def _named_rewards(answered: Sequence[Answered]) -> dict[str, list[float]]:
    """Each named reward of the responses that it scored, in one pass: an agent may have 64 names."""
    found: dict[str, list[float]] = {}
    for prompt in answered:
        for name, values in prompt.parts:
            found.setdefault(name, []).extend(values)
    return found


def line(
    answered: Mapping[int, Answered], failed: Mapping[int, str], sources: Sequence[str],
    *, samples: int, threshold: float,
) -> dict[str, object]:  # fmt: skip
    """The figures of a whole evaluation.

    `answered`, `failed`: by the number of the prompt; `sources`: of all prompts, in order.
    """
    versions: Counter[int] = Counter()
    for prompt in answered.values():
        versions.update(prompt.versions)
    by_source: dict[str, list[Answered]] = {source: [] for source in dict.fromkeys(sources)}
    for number in sorted(answered):
        by_source[sources[number]].append(answered[number])
    everything = [prompt for prompts in by_source.values() for prompt in prompts]
    shown = sorted(failed)[:NAMED]
    return {
        **figures(everything, samples=samples, threshold=threshold),
        "failed": len(failed),
        "failures": [f"{sources[number]}, prompt {number}: {failed[number]}" for number in shown],
        "tokens": versions.total(),
        "tokens/by_version": {str(version): versions[version] for version in sorted(versions)},
        "sources": {
            source: figures(prompts, samples=samples, threshold=threshold)
            for source, prompts in by_source.items()
        },
    }


def headline(line: Mapping[str, object]) -> dict[str, object]:
    """The part of a report that the summary keeps."""
    names = ("policy_version", "prompts", "failed", "reward/mean", "response_length/mean", *ALIKE)
    return {name: value for name, value in line.items() if name in names or name.startswith("pass@")}


def is_comparable(line: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two reports are of the same prompts and threshold, which a resumed run may have changed."""
    return all(line.get(name) == other.get(name) for name in ALIKE)


def is_better(line: Mapping[str, object], than: Mapping[str, object]) -> bool:
    """Whether a report is better by pass@1, then by mean reward; one without figures is the worst."""
    return _rank(line) > _rank(than)


def _rank(line: Mapping[str, object]) -> tuple[float, float]:
    values = (line.get("pass@1"), line.get("reward/mean"))
    first, second = (value if isinstance(value, int | float) else float("-inf") for value in values)
    return round(first, DIGITS), second


def _ks(samples: int) -> list[int]:
    """Powers of two up to `samples`, and `samples`."""
    return sorted({1 << power for power in range(samples.bit_length())} | {samples})
