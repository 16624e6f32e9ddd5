"""Windows of prompts: what was generated and trained of each, which is the exact bias of the sampler.

Invariants: each group of a window counts once when it leaves the run, and a window is told when its last
group has left; generated are all complete groups, also those that a filter drops; dropped are responses that
were called off before they ended, or whose group was. Where there are any, nobody knows how long they would
have become, so the bias is not known either. Nothing here decides.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log1p, sqrt

from controller.core.state.batches.contributions import Contribution
from controller.core.state.groups import Group
from strategies.batches.prompt_lengths import PromptLengths


@dataclass(slots=True)
class WindowTally:
    """Sums over the responses of some windows."""

    windows: int = 0
    generated: int = 0
    generated_tokens: int = 0
    dropped: int = 0  # responses that were started and are of no complete group, or were not needed in theirs
    dropped_tokens: int = 0  # that those had by then
    trained: int = 0
    trained_tokens: int = 0
    ages: int = 0  # of the trained ones, in versions
    ages_by_token: int = 0  # each times its tokens
    known: int = 0  # generated ones whose prompt was remembered
    known_squares: float = 0.0  # of the errors of their expected log lengths
    new_squares: float = 0.0  # and of the others

    def add(self, other: "WindowTally") -> None:
        """Take in what another one has counted."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def figures(self) -> dict[str, object]:
        """Means, for people."""
        new = self.generated - self.known
        generated = self.generated_tokens / max(1, self.generated)
        trained = self.trained_tokens / max(1, self.trained)
        is_known = self.trained and generated and not self.dropped
        return {
            "sampler/windows": self.windows,
            "sampler/generated_length": generated,
            "sampler/trained_length": trained,
            "sampler/length_bias": trained / generated - 1 if is_known else None,
            "sampler/dropped_share": self.dropped / max(1, self.generated + self.dropped),
            "sampler/dropped_length": self.dropped_tokens / self.dropped if self.dropped else None,
            "sampler/staleness": self.ages / self.trained if self.trained else None,
            "sampler/staleness_by_token": self.ages_by_token / self.trained_tokens
            if self.trained_tokens
            else None,
            "sampler/known_share": self.known / max(1, self.generated),
            "sampler/log_error": sqrt(self.known_squares / self.known) if self.known else None,
            "sampler/log_error_new": sqrt(self.new_squares / new) if new else None,
        }


@dataclass(slots=True)
class OpenWindow:
    """A window some of whose groups are still in the run."""

    left: int
    tally: WindowTally


class Windows:
    """The windows of a run."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        """Encoded groups that are in no window yet, as they were read."""
        self.lengths = PromptLengths()
        """What is known of prompts when a window is made."""
        self.opened = 0
        """Windows that were ever made."""
        self.total = WindowTally()
        """Over all windows that are complete."""
        self._open: dict[int, OpenWindow] = {}
        self._untold = WindowTally()

    def open(self, groups: Sequence[Group]) -> None:
        """These are the groups of the next window."""
        for group in groups:
            group.window = self.opened
        self._open[self.opened] = OpenWindow(len(groups), WindowTally(windows=1))
        self.opened += 1

    def generated(self, group: Group) -> None:
        """A group is complete."""
        window = self._open.get(group.window)
        if window is None:
            return
        tally, lengths = window.tally, group.response_lengths
        squares = sum((log1p(length) - group.expected_log) ** 2 for length in lengths)
        tally.generated += len(lengths)
        tally.generated_tokens += sum(lengths)
        if group.seen:
            tally.known += len(lengths)
            tally.known_squares += squares
        else:
            tally.new_squares += squares

    def dropped(self, group: Group, lengths: Sequence[int]) -> None:
        """Responses that are called off, with the tokens that each has so far."""
        window = self._open.get(group.window)
        if window is not None:
            window.tally.dropped += len(lengths)
            window.tally.dropped_tokens += sum(lengths)

    def trained(self, group: Group, contribution: Contribution, train_version: int) -> None:
        """A group goes to the trainer."""
        window = self._open.get(group.window)
        if window is None:
            return
        tally = window.tally
        tally.trained += len(contribution.lengths)
        tally.trained_tokens += sum(contribution.lengths)
        for item, length in zip(contribution.items, contribution.lengths, strict=True):
            if item.segments:
                age = train_version - item.segments[0].policy_version
                tally.ages += age
                tally.ages_by_token += age * length
        self.left(group)

    def left(self, group: Group) -> None:
        """A group leaves the run, trained or not."""
        window = self._open.get(group.window)
        if window is None:
            return
        window.left -= 1
        if not window.left:
            self.total.add(window.tally)
            self._untold.add(window.tally)
            del self._open[group.window]
        group.window = -1

    def figures(self) -> dict[str, object]:
        """Of the windows that were completed since the last call; {} if none was."""
        if not self._untold.windows:
            return {}
        figures, self._untold = self._untold.figures(), WindowTally()
        return figures
