"""The section `evaluation`: held-out prompts that are answered while training goes on.

Invariant: pure; `controller/config/models.py` imports this module, which does not import it.
"""

from pydantic import Field

from controller.config.data import RowSettings
from protocol.settings import SamplingSettings, Section


class HeldOutSettings(RowSettings):
    """One held-out set. It takes no value from `data`, so a change of training data leaves it as it is."""

    path: str = Field(min_length=1)
    """As `data.path`."""
    source_column: str = ""
    """Column with the name of a row's data source. Empty: the name of the set is used."""
    max_prompts: int = Field(default=0, ge=0)
    """Use only this many rows, from the first on; 0 uses all. An import path needs a number, as it may
    never end."""
    seed: int = Field(default=1_000_000, ge=0, lt=2**31)
    """Seed with which `prompts` of an import path is called. Its default is far from `run.seed`, from which
    training counts up, so that a function that draws prompts draws different ones."""


class EvaluationSettings(Section):
    """Held-out prompts, answered by the run's own workers at chosen policy versions.

    They have no place in the staleness ledger. See docs/evaluation.md.
    """

    every_steps: int = Field(default=0, ge=0)
    """Train steps from one evaluated policy version to the next; 0 turns evaluation off. An evaluation that
    is due during another one waits; if the next comes due meanwhile, the waiting one is skipped, with a
    warning."""
    at_start: bool = True
    """Evaluate version 0, the initial model of the run."""
    at_end: bool = True
    """Evaluate the last version too, whatever its number, before the run ends."""
    data: dict[str, HeldOutSettings] = Field(default_factory=dict)
    """Held-out sets by name, each with `path` and, if need be, keys of `data` that turn rows into prompts
    (`columns`, `prompt`, `system`, ...), `source_column`, `max_prompts`, `seed`; see docs/evaluation.md."""
    samples: int = Field(default=1, ge=1, le=4096)
    """Responses per prompt. pass@k is estimated for each power of two below this number, and for the
    number."""
    sampling: SamplingSettings = SamplingSettings()
    """Sampling of held-out responses, with the keys of `rollout.sampling`. The values there do not apply
    here, so that a change of training leaves the measure as it is. Temperature 0 is greedy."""
    threshold: float = 1.0
    """A response passes if its reward is at least this."""
    reward_function: str = ""
    """Import path or name, as `reward.function`. Empty: the rewards of training are used."""
    exact: bool = True
    """Answer with the evaluated version alone: instances finish these responses before they pull newer
    weights, at the price of older training data meanwhile. Off: instances do not wait, a response may go on
    under newer weights, and evaluations.jsonl says how many tokens each version sampled."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Largest share of an instance's slots for evaluation while training needs them; at least one slot."""


def copies_problem(samples: int, sampling: SamplingSettings) -> str | None:
    """Why all `samples` responses to a prompt would be equal; None if they can differ."""
    if sampling.temperature > 0 or samples <= 1:
        return None
    return (
        f"is {samples}, but at temperature 0 all responses to a prompt are the same; give 1 sample, or a "
        "temperature above 0."
    )


def may_never_end(path: str) -> bool:
    """Whether rows come from a function, and not from a file or a sized set of reasoning-gym or verifiers."""
    name = path.rpartition(":")[2]
    return ":" in path and name.isidentifier() and not path.startswith(("reasoning_gym:", "verifiers:"))
