"""Windows of prompts: responses generated and trained of each window, which give the sampler's exact bias.

Invariants: each group of a window counts once, when it leaves the run, and a window is reported when its last
group has left. `generated` counts all complete groups, also filtered ones; `dropped` counts responses that
were called off before they ended, or whose group was. With dropped responses the bias is unknown, since
their final lengths are. Nothing here decides.
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
    dropped: int = 0  # started responses of incomplete groups, and spare ones
    dropped_tokens: int = 0  # tokens that those had
    trained: int = 0
    trained_tokens: int = 0
    ages: int = 0  # sum of the staleness of trained responses
    ages_by_token: int = 0  # the same sum, weighted by tokens
    known: int = 0  # generated responses to remembered prompts
    known_squares: float = 0.0  # sum of squared errors of their expected log lengths
    new_squares: float = 0.0  # the same sum for responses to new prompts

    def add(self, other: "WindowTally") -> None:
        """Add another tally to this one."""
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
        """Encoded groups that are in no window yet, in the order of the data."""
        self.lengths = PromptLengths()
        """What is known of the lengths of responses to each prompt."""
        self.opened = 0
        """Number of windows made so far."""
        self.total = WindowTally()
        """Sums over all complete windows."""
        self._open: dict[int, OpenWindow] = {}
        self._untold = WindowTally()

    def open(self, groups: Sequence[Group]) -> None:
        """Open a window with these groups."""
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
        """Responses of a group are called off; `lengths`: tokens of each so far."""
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
        """Figures of the windows completed since the last call; {} if none was."""
        if not self._untold.windows:
            return {}
        figures, self._untold = self._untold.figures(), WindowTally()
        return figures
