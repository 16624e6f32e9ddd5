"""Rewards by name: the options of each, where it is computed, and what it needs. KINDS has a line per name.

A new kind is a class of options here, a line in KINDS, and a module with `make(options, place)` that returns
a function of one of the shapes of protocol/rewards/shapes.py.
Invariant: pure. What the options of a kind refuse, they refuse when the configuration is read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import AfterValidator, Discriminator, Field, Tag

from protocol.section import Section

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
TAKEN = ("mean", "std", "first_steps", "last_steps")
"""Metrics `reward/...` that every run has: no reward has such a name."""
Sandbox = Literal["auto", "bubblewrap", "limits"]
"""What programs that a model wrote run in."""
Value = str | int | float | bool


def _free_name(name: str) -> str:
    if name and (not re.fullmatch(NAME, name) or name in TAKEN):
        raise ValueError(
            f"expected letters, digits, `_`, `-` and `.`, up to 64 of them, and none of {', '.join(TAKEN)}"
        )
    return name


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


Expression = Annotated[str, AfterValidator(_expression)]
Column = Annotated[str, Field(min_length=1)]
"""A column of the data; `reward_model.ground_truth` is a key of a mapping in a column."""


class NamedReward(Section):
    """What every entry of `reward.rewards` may have, whatever its kind."""

    kind: str
    """One of the names of docs/rewards.md."""
    name: Annotated[str, AfterValidator(_free_name)] = ""
    """Names the metric, `reward/NAME`. Empty: the kind, or the function's own name."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of this reward in the sum."""
    when: dict[str, Value | list[Value]] = Field(default_factory=dict)
    """Columns and the value, or list of values, that a row must have there for this reward to count, e.g.
    `{data_source: gsm8k}`. Empty: every row."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds for one response; unset: `reward.timeout_s`."""

    @property
    def label(self) -> str:
        """The name in metrics and messages."""
        return self.name or self.kind

    def is_for(self, row: Mapping[str, Any]) -> bool:
        """Whether this reward counts for a row of the data."""
        return all(
            find(row, column) in (wanted if isinstance(wanted, list) else [wanted])
            for column, wanted in self.when.items()
        )


class FunctionReward(NamedReward):
    """A function of the user's."""

    kind: Literal["function"] = "function"
    function: str = Field(min_length=1)
    """Import path, as `reward.function`."""

    @property
    def label(self) -> str:
        """The name in metrics and messages."""
        return self.name or self.function.rpartition(":")[2]


class ExactReward(NamedReward):
    """1 if the answer in the response is that of the data, letter by letter."""

    kind: Literal["exact"] = "exact"
    answer: Column = "answer"
    """Column of the gold answer."""
    answer_after: str = ""
    """The gold answer is what follows the last of these characters in the column, e.g. `####` for GSM8K.
    Empty: all of it."""
    pattern: Expression = ""
    """Regular expression whose last match in the response is the answer: its first group, or all of it.
    Empty: the whole response."""
    ignore_case: bool = False
    """Take upper and lower case as the same."""


class CodeReward(NamedReward):
    """Whether the program in a response passes the tests of its row; it runs in `reward.sandbox`."""

    kind: Literal["code"] = "code"
    tests: str = ""
    """Column of the tests. Empty: the first of those of docs/sandbox.md that a row has."""
    credit: Literal["all", "fraction"] = "all"
    """`all`: 1 if every test is passed, else 0; `fraction`: the share of tests that are passed."""
    max_tests: int = Field(default=0, ge=0)
    """Only the first so many tests of a row count; 0: all."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Within which numbers are equal, relative and absolute, in what a program prints or a function returns.
    Asserts compare as they say."""
    cpu_s: float = Field(default=10.0, gt=0)
    """Seconds of CPU of a program: for each input, or for all asserts together."""
    wall_s: float = Field(default=30.0, gt=0)
    """Seconds by the clock, likewise. A program that waited for a core most of them is run again, alone."""
    total_s: float = Field(default=60.0, gt=0)
    """Seconds for all inputs of a response together; the tests behind them count as failed."""
    memory_mb: int = Field(default=1024, ge=64)
    """Memory of a program with all its processes."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads of a program side by side."""
    output_kb: int = Field(default=4096, ge=1)
    """What a program may print."""
    file_mb: int = Field(default=16, ge=1)
    """What a program may write into its folder."""
    timeout_s: float | None = Field(default=900.0, gt=0)
    """Seconds for one group. A backstop that the limits above keep from being reached: a group that reaches
    it fails."""


@dataclass(frozen=True, slots=True)
class RewardKind:
    """How a named reward is computed."""

    options: type[NamedReward]
    module: str
    """Has `make(options, place)`; imported in the processes of this reward only."""
    extra: str = ""
    """Of pyproject.toml, that the module needs."""
    columns: Callable[[Any], tuple[str, ...]] = lambda options: ()
    """Columns that a row must have, by options."""
    out_of_cpu: float | None = None
    """What a response gets over which the process used up the CPU time that the module allowed it
    (RLIMIT_CPU); None: its group fails."""
    processes: int | None = None
    """Processes of a worker; None: `reward.processes`."""
    concurrency: int | None = None
    """Responses in flight in a process, of whole groups; None: `reward.concurrency`."""


KINDS: dict[str, RewardKind] = {
    "function": RewardKind(FunctionReward, "workers.reward.kinds.function"),
    "exact": RewardKind(
        ExactReward, "workers.reward.kinds.exact", columns=lambda options: (options.answer,)
    ),
    "code": RewardKind(CodeReward, "workers.reward.kinds.code", concurrency=1),
}  # fmt: skip
"""Every kind of reward."""


def _kind_of(entry: Any) -> str:
    kind = entry.get("kind", "function") if isinstance(entry, Mapping) else getattr(entry, "kind", "")
    return kind if isinstance(kind, str) else ""


if TYPE_CHECKING:
    AnyReward = NamedReward
else:
    AnyReward = Annotated[
        Union[tuple(Annotated[kind.options, Tag(name)] for name, kind in KINDS.items())],  # noqa: UP007
        Discriminator(
            _kind_of,
            custom_error_type="reward_kind",
            custom_error_message=f"a mapping whose `kind` is one of {', '.join(KINDS)}",
        ),
    ]


def entry_of(function: str) -> NamedReward:
    """The reward that `reward.function` names: an import path, or a kind with all its options at their
    defaults. Raises: pydantic.ValidationError if that kind has options without a default."""
    if ":" not in function and function in KINDS:
        return KINDS[function].options(kind=function)
    return FunctionReward(function=function)


def names_without_options() -> tuple[str, ...]:
    """Kinds that `reward.function` may name."""
    return tuple(
        name
        for name, kind in KINDS.items()
        if not any(field.is_required() for field in kind.options.model_fields.values())
    )


def find(row: Mapping[str, Any], column: str) -> Any:
    """What a row has in a column; of `a.b` the key `b` of the mapping in `a`. None if there is nothing."""
    if column in row:
        return row[column]
    first, _, rest = column.partition(".")
    inner = row.get(first)
    return find(inner, rest) if rest and isinstance(inner, Mapping) else None
