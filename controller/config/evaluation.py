"""The section `evaluation`: held-out prompts that are answered while training goes on.

Invariant: pure, and below the configuration, which includes it.
"""

from pydantic import Field

from controller.config.data import RowSettings
from protocol.settings import SamplingSettings, Section


class HeldOutSettings(RowSettings):
    """One held-out set. Nothing of `data` counts for it, so that what is measured stays what it is."""

    path: str = Field(min_length=1)
    """As `data.path`."""
    source_column: str = ""
    """Column whose value names the data source of a row. Empty: the name of the set."""
    max_prompts: int = Field(default=0, ge=0)
    """Use the first so many rows; 0 is all. An import path, which may never end, needs a number."""
    seed: int = Field(default=1_000_000, ge=0, lt=2**31)
    """What `prompts` of an import path is called with: far from `run.seed`, from which training counts up, so
    that a function that draws prompts draws others."""


class EvaluationSettings(Section):
    """Held-out prompts, answered by the run's own workers at chosen policy versions.

    They have no place in the staleness ledger. See docs/evaluation.md.
    """

    every_steps: int = Field(default=0, ge=0)
    """Train steps from one evaluated policy version to the next; 0 turns evaluation off. One that is due
    while another goes on waits for it; if the next comes due meanwhile, it is skipped, and that is said."""
    at_start: bool = True
    """Evaluate version 0, the model that the run begins with."""
    at_end: bool = True
    """Evaluate the last version too, whatever its number, before the run ends."""
    data: dict[str, HeldOutSettings] = Field(default_factory=dict)
    """Held-out sets by name, each with `path` and, if need be, what makes prompts of rows as in `data`
    (`columns`, `prompt`, `system`, ...), `source_column`, `max_prompts`, `seed`; see docs/evaluation.md."""
    samples: int = Field(default=1, ge=1, le=4096)
    """Responses per prompt. pass@k is estimated for the powers of two up to it, and for it."""
    sampling: SamplingSettings = SamplingSettings()
    """As `rollout.sampling`, of evaluation; `rollout.sampling` does not count here, so that what is
    measured stays what it is. Temperature 0 is greedy."""
    threshold: float = 1.0
    """A response passes if its reward is at least this."""
    reward_function: str = ""
    """Import path or name, as `reward.function`. Empty: the rewards of training count."""
    exact: bool = True
    """Answer with the evaluated version alone: the instances that do it finish before they pull newer
    weights, at the price of older training data meanwhile. Off: nobody waits, a response may go on under
    newer weights, and the line says how many tokens each version made."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Most of an instance's slots that evaluation takes while training needs them; one slot at least."""


def copies_problem(samples: int, sampling: SamplingSettings) -> str | None:
    """Why so many responses to a prompt would be copies of one; None if they are not."""
    if sampling.temperature > 0 or samples <= 1:
        return None
    return (
        f"is {samples}, but at temperature 0 all responses to a prompt are the same; give 1 sample, or a "
        "temperature above 0."
    )
