"""The order in which the prompts of a window start, and so the batches: `sample(view) -> places`.

A window is `staleness.sampler_batches` batches of prompts that were read one after the other. Groups that
start together are trained together, as far as the bound and their completion allow. Every prompt of a window
starts before any of the next window, so over a window no order favours any prompts. Redundancy, and rules
that drop groups which grew too old, favour short responses all the same, as they do without a sampler.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class PromptView(NamedTuple):
    """One prompt of the window."""

    group: int
    source: int
    prompt_tokens: int
    expected_log: float  # of its responses: mean of log(1 + tokens), predicted from earlier ones
    seen: float  # earlier responses that it is based on; 0: it is the mean of the source


class SamplingView(NamedTuple):
    """A window of prompts, in the order in which they were read."""

    prompts: tuple[PromptView, ...]
    batch_groups: int
    seed: int  # of this window: the only source of randomness
    number: int = 0  # of this window, from 0


Sampler = Callable[[SamplingView], Sequence[int]]


def in_order(view: SamplingView) -> Sequence[int]:
    """In the order in which they were read."""
    return range(len(view.prompts))


def similar_length(view: SamplingView) -> Sequence[int]:
    """Batches of prompts with similar expected lengths, in the order of their lengths.

    Long responses share few batches instead of stretching every one, and as a batch lives through
    max_staleness + 1 train steps, neighbouring batches share these too. Lengths rise in one window and fall
    in the next, so the longest batches of two windows follow each other, and are waited for once. A single
    batch is biased in length, and in whatever correlates with length; all batches of a window together are
    not biased by this order. Source: RollPacker (arXiv 2509.21009), which also gathers long responses in
    separate rounds, in synchronous training, by racing.
    """
    batches = _by_length(view)
    return _joined(batches[::-1] if view.number % 2 else batches)


def similar_length_shuffled(view: SamplingView) -> Sequence[int]:
    """The same batches in random order: lengths do not drift from step to step, at the price of speed."""
    batches = _by_length(view)
    random.Random(view.seed).shuffle(batches)
    return _joined(batches)


def _by_length(view: SamplingView) -> list[list[int]]:
    """Places of the window in batches, shortest first; one batch in reading order if lengths are unknown."""
    logs = [prompt.expected_log for prompt in view.prompts]
    if max(logs) - min(logs) < 1e-9:
        return [list(range(len(logs)))]  # reordering would only defer some prompts
    places = sorted(range(len(logs)), key=lambda place: (logs[place], place))
    return [places[first : first + view.batch_groups] for first in range(0, len(places), view.batch_groups)]


def _joined(batches: list[list[int]]) -> list[int]:
    return [place for batch in batches for place in batch]


SAMPLERS: dict[str, Sampler] = {
    "in_order": in_order,
    "similar_length": similar_length,
    "similar_length_shuffled": similar_length_shuffled,
}
