"""The order in which prompts start: windows of several batches, each ordered by the sampler.

Invariants: every prompt of a window starts before any of the next window; a window is ordered when the last
one is about to run out, by the lengths known at that moment and nothing else; without a sampler prompts
start in the order of the data and nothing is remembered.
"""

import random
from collections import Counter

from controller.core.state.groups import Group
from controller.core.state.run_state import RunState
from strategies.batches.samplers import PromptView, SamplingView

NO_IDENTITY = (
    "The prompts have no identity, so none is known again in a later epoch: batches are made by "
    "the mean length of each source alone. Expected prompts of a file or a dataset."
)


class Sampling:
    """Groups waiting prompts into windows, and orders each."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    def run(self, *, is_end: bool) -> None:
        """Order the next window if it is due and full. `is_end`: no more prompts come, so a part will do."""
        state = self.state
        most = state.window_groups
        if not most:
            return
        least = state.config.trainer.batch_groups
        while (
            state.windows.waiting
            and len(state.fresh) < least
            and (is_end or len(state.windows.waiting) >= most)
        ):
            count = min(most, len(state.windows.waiting))
            self._order([state.groups[state.windows.waiting.popleft()] for _ in range(count)])

    def _order(self, groups: list[Group]) -> None:
        state = self.state
        expected = state.windows.lengths.expect([(group.prompt, group.source) for group in groups])
        for group, one in zip(groups, expected, strict=True):
            group.expected_log, group.seen = one
        self._tell(groups)
        prompts = tuple(PromptView(g.id, g.source, g.prompt_tokens, g.expected_log, g.seen) for g in groups)
        number = state.windows.opened
        seed = random.Random(f"{state.config.run.seed}/window/{number}").getrandbits(52)
        view = SamplingView(prompts, state.config.trainer.batch_groups, seed, number)
        places = state.strategies.sample(view)
        state.windows.open(groups)
        state.fresh.extend(groups[place].id for place in places)

    def _tell(self, groups: list[Group]) -> None:
        """Warn if a window cannot serve its purpose."""
        state, size = self.state, self.state.config.trainer.batch_groups
        counts = Counter(group.prompt for group in groups if group.prompt)
        if not counts:
            state.warn_once(
                "sampler",
                NO_IDENTITY,
            )
        elif max(counts.values()) > 2:
            state.warn_once(
                "sampler",
                f"A window of {len(groups)} prompts has only {len(counts)} different ones, so a batch may "
                "hold one prompt several times. Lower staleness.sampler_batches to "
                f"{max(2, len(counts) // size)}, or give more prompts.",
            )
