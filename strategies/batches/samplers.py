"""Which groups make a batch: the order in which the prompts of a window start. `sample(view) -> places`.

A window is `staleness.sampler_batches` batches of prompts that were read one after the other. Groups that
start together are trained together, as far as the bound and their completion allow. Every prompt of a window
starts before one of the next window does, so over a window nothing is favoured, whatever the order inside.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class PromptView(NamedTuple):
    """One prompt of the window."""

    group: int
    source: int
    prompt_tokens: int
    expected_log: float  # of its responses: mean of log(1 + tokens), by earlier ones to it, or by its source
    seen: float  # earlier responses to it that this is based on; 0: it is the mean of the source


class SamplingView(NamedTuple):
    """A window of prompts, in the order in which they were read."""

    prompts: tuple[PromptView, ...]
    batch_groups: int
    seed: int  # of this window: chance comes from here alone


Sampler = Callable[[SamplingView], Sequence[int]]


def in_order(view: SamplingView) -> Sequence[int]:
    """As they were read."""
    return range(len(view.prompts))


def similar_length(view: SamplingView) -> Sequence[int]:
    """Batches of prompts whose responses are expected to be about equally long, in a random order.

    The long ones then share few batches instead of stretching every one. A batch alone is biased in length,
    and in whatever goes with length; all batches of a window together are not. Source: RollPacker (arXiv
    2509.21009) gathers long responses in rounds of their own too, in synchronous training, by racing.
    """
    logs = [prompt.expected_log for prompt in view.prompts]
    if max(logs) - min(logs) < 1e-9:
        return range(len(logs))  # nothing is known: to shuffle would only defer
    places = sorted(range(len(logs)), key=lambda place: (logs[place], place))
    size = view.batch_groups
    batches = [places[first : first + size] for first in range(0, len(places), size)]
    random.Random(view.seed).shuffle(batches)
    return [place for batch in batches for place in batch]


SAMPLERS: dict[str, Sampler] = {"in_order": in_order, "similar_length": similar_length}
