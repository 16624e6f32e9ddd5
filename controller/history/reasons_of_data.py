"""Explains the order in which prompts start, and the sources from which they are read.

Invariant: pure. The user's own strategies are not explained.
"""

from collections.abc import Sequence
from math import expm1

from controller.history.reasons import Reasons
from strategies import schedules
from strategies.batches import samplers
from strategies.batches.samplers import Sampler, SamplingView
from strategies.schedules import MixtureView, Schedule

MOST_GROUPS = 64  # in one text
SAMPLERS: dict[Sampler, str] = {
    samplers.in_order: "Prompts start as they were read.",
    samplers.similar_length: "Batches of prompts of about one expected length: shortest first in even "
    "windows, longest first in odd ones. Where nothing is known of lengths, as they were read.",
    samplers.similar_length_shuffled: "Batches of prompts of about one expected length, in a random order. "
    "Where nothing is known of lengths, as they were read.",
}
SCHEDULES: dict[Schedule, str] = {
    schedules.constant: "The weights of the configuration.",
    schedules.stages: "The weights of the last stage that has begun.",
    schedules.ramp: "Between the weights of the last stage that has begun and of the next one, by steps.",
    schedules.by_pass_rate: "The weights of the configuration, each times 4p(1 - p) of the source's pass "
    f"rate p, and that at least {schedules.FLOOR:g}.",
}


def of_sampling(sample: Sampler, view: SamplingView) -> Reasons | None:
    """The rule of a sampler, with expected lengths; None for a rule of the user's."""
    if sample not in SAMPLERS:
        return None
    expected = [expm1(prompt.expected_log) for prompt in view.prompts]
    lengths = f"{min(expected):.0f} to {max(expected):.0f} tokens are expected of a response"
    return Reasons(f"{SAMPLERS[sample]} In this window {lengths}.")


def of_schedule(schedule: Schedule, view: MixtureView) -> Reasons | None:
    """The rule of a schedule, with weights and pass rates; None for a rule of the user's."""
    if schedule not in SCHEDULES:
        return None
    known = [f"{one.name}: weight {one.weight:g}, pass rate {one.pass_rate:.2f}" for one in view.sources]
    return Reasons(f"{SCHEDULES[schedule]} After step {view.step}, {'; '.join(known)}.")


def order_in_words(places: Sequence[int], view: SamplingView) -> str:
    """The groups of a window, batch by batch, as text."""
    groups = [view.prompts[place].group for place in places]
    size = view.batch_groups
    batches = [groups[first : first + size] for first in range(0, min(len(groups), MOST_GROUPS), size)]
    told = "; then ".join(", ".join(map(str, batch)) for batch in batches)
    return f"groups {told}{', ...' if len(groups) > MOST_GROUPS else ''}"


def shares_in_words(weights: Sequence[float], view: MixtureView) -> str:
    """The share of each source, as text."""
    total = sum(weights)
    shares = zip(view.sources, weights, strict=True)
    return ", ".join(f"{source.name} {weight / total:.0%}" for source, weight in shares)
