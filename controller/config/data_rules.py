"""Rules between keys of the section `data`, and of the sources and stages in it.

Invariant: pure; a rule names the fields that it reads, their values, and values that would be accepted.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from controller.config.data import DataSettings, RowSettings
from controller.config.models import Config

Problem = tuple[tuple[str, ...], str]
STAGED = ("stages", "ramp")


def data_problems(config: Config) -> Iterator[Problem]:
    """(fields read, what is wrong) for every rule that does not hold."""
    data = config.data
    yield from _row_problems("data", data)
    for name, one in config.evaluation.data.items():
        yield from _row_problems(f"evaluation.data.{name}", one)
    if data.sources:
        yield from _source_problems(data)
        yield from _length_problems(data, config.rollout.max_response_tokens)
        yield from _claim_problems(config)
    yield from _stage_problems(data)
    yield from _sampler_problems(config)
    if data.schedule == "pass_rate" and config.trainer.is_supervised:
        yield (
            ("data.schedule", "trainer.algorithm"),
            "is pass_rate, but a supervised run has no responses that could pass; give constant, stages or "
            "ramp.",
        )


def _sampler_problems(config: Config) -> Iterator[Problem]:
    """Refuses a sampler where prompts have to start in the order of the data."""
    trainer, sampler = config.trainer, config.staleness.sampler
    if sampler == "in_order":
        return
    reasons = {
        "trainer.algorithm": "is sft, whose responses are given and not waited for; train otherwise"
        if trainer.is_supervised
        else None,
        "agent.function": "lets environments make the prompts, whose episodes begin in the order of the "
        "data; run no agent"
        if config.agent.is_on
        else None,
        "trainer.baseline": "compares rewards with their mean over the batch, which is then one of prompts "
        "of a kind; give group_mean, leave_one_out, value or none"
        if trainer.baseline == "batch_mean"
        else None,
        "trainer.advantage_scale": "divides advantages by their deviation over the batch, which is then one "
        "of prompts of a kind; give group_std or none"
        if trainer.advantage_scale == "batch_std"
        else None,
    }
    for field, reason in reasons.items():
        if reason is not None:
            yield (
                ("staleness.sampler", field),
                f"is {sampler}, which chooses the prompts of each batch, but {field} {reason}, or leave "
                "staleness.sampler in_order.",
            )


def _row_problems(place: str, rows: RowSettings) -> Iterator[Problem]:
    if rows.max_chars and rows.max_chars < rows.min_chars:
        yield (
            (f"{place}.max_chars", f"{place}.min_chars"),
            f"is {rows.max_chars}, below {place}.min_chars {rows.min_chars}, so that no prompt is left; "
            "raise it.",
        )
    if rows.prompt and "prompt" in rows.columns:
        yield (
            (f"{place}.prompt", f"{place}.columns"),
            f"is a template, and {place}.columns names {rows.columns['prompt']!r} as the prompt too; keep "
            "one.",
        )


def _source_problems(data: DataSettings) -> Iterator[Problem]:
    if data.path:
        yield (
            ("data.path", "data.sources"),
            f"is {data.path!r}, and data.sources names {len(data.sources)} more; keep one of the two: "
            "data.path for one source, data.sources for several.",
        )
    for number, one in enumerate(data.sources):
        if not one.path:
            yield ((f"data.sources.{number}.path",), "is empty; name a file, or take the source out.")
        yield from _row_problems(f"data.sources.{number}", one)
    names = Counter(one.name for one in data.sources)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        yield (
            ("data.sources",),
            f"has {names[twice[0]]} sources named {twice[0]!r}, so that no message could tell them apart; "
            "give each a `name` of its own.",
        )
    if wrong := _wrong_sum([(one.name, one.weight) for one in data.sources]):
        yield ("data.sources",), f"has weights that {wrong}"


def _wrong_sum(weights: Sequence[tuple[str, float]]) -> str:
    """What is wrong with the sum of the weights of sources, and what to do; "" if it is fine."""
    total = sum(weight for _, weight in weights)
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights)
    if not total:
        return (
            f"sum to 0 ({listed or 'none'}), so that nothing could be read; give at least one source a "
            "weight above 0."
        )
    if total == inf:
        return (
            f"sum to more than a number can hold ({listed}), so that no source would have a share; expected "
            "a finite sum. Divide them all by the same number: only their ratio counts."
        )
    return ""


def _length_problems(data: DataSettings, most: int) -> Iterator[Problem]:
    for number, one in enumerate(data.sources):
        if one.max_response_tokens > most:
            yield (
                (f"data.sources.{number}.max_response_tokens", "rollout.max_response_tokens"),
                f"is {one.max_response_tokens}, above rollout.max_response_tokens {most}, which memory is "
                "laid out for; lower it, or raise the other.",
            )


def _claim_problems(config: Config) -> Iterator[Problem]:
    """Refuses priorities and quotas if the order of prompts is fixed, and quotas that sum to under 1."""
    sources = config.data.sources
    ranked = next((number for number, one in enumerate(sources) if one.is_ranked), None)
    if ranked is None:
        return
    key = "priority" if sources[ranked].priority else "quota"
    here = f"data.sources.{ranked}.{key}"
    what = f"is {getattr(sources[ranked], key):g}, which changes the order in which prompts start, but"
    if config.staleness.sampler != "in_order":
        sampler = f"staleness.sampler is {config.staleness.sampler}, which orders them already"
        yield (here, "staleness.sampler"), f"{what} {sampler}; leave one of the two out."
    if config.trainer.is_supervised:
        yield (here, "trainer.algorithm"), f"{what} sft trains them in the order of the data; leave it out."
    total = sum(one.quota for one in sources)
    if total < 1:
        quotas = ", ".join(f"{one.name} {one.quota:g}" for one in sources)
        yield (
            ("data.sources",),
            f"has quotas that sum to {total:g} ({quotas}), so that all sources would be beyond theirs; "
            "expected 1 at least. Raise one, or leave one out.",
        )


def _stage_problems(data: DataSettings) -> Iterator[Problem]:
    if (data.schedule in STAGED) != bool(data.stages):
        yield (
            ("data.stages", "data.schedule"),
            f"has {len(data.stages)} stages, and data.schedule is {data.schedule}; stages belong to "
            f"{' and '.join(STAGED)}, which need at least one.",
        )
    if not data.stages:
        return
    begins = [stage.from_step for stage in data.stages]
    if begins[0] != 0 or sorted(set(begins)) != begins:
        yield (
            ("data.stages",),
            f"begins at the steps {', '.join(map(str, begins))}; expected 0 first, and each later than the "
            "last.",
        )
    names = [one.name for one in data.sources]
    for number, stage in enumerate(data.stages):
        unknown = [name for name in stage.weights if name not in names]
        if unknown:
            yield (
                (f"data.stages.{number}.weights", "data.sources"),
                f"names {unknown[0]!r}, which is no source; data.sources has {', '.join(names) or 'none'}.",
            )
        elif wrong := _wrong_sum([*stage.weights.items()]):
            yield (f"data.stages.{number}.weights",), wrong
