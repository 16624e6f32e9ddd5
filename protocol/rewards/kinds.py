"""Rewards by name: the options of each, where it is computed, and what it needs. KINDS has a line per name.

A new kind is a class of options here, a line in KINDS, and a module with `make(options, place)` that returns
a function of one of the shapes of protocol/rewards/shapes.py.
Invariant: pure. What the options of a kind refuse, they refuse when the configuration is read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from protocol.section import Section

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
TAKEN = ("mean", "std", "first_steps", "last_steps")
"""Metrics `reward/...` that every run has: no reward has such a name."""
Sandbox = Literal["auto", "bubblewrap", "limits"]
"""What programs that a model wrote run in."""
FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")
"""A field of a judge's prompt."""
JUDGED = ("question", "completion", "criterion")
"""Fields that are no columns."""
JUDGE_PROMPT = """Judge the response to a question.

Question:
{question}

Response:
{completion}

How good is the response, from 0 (useless) to 10 (perfect)? Think briefly, and end with the number alone."""
JUDGE_NUMBER = (
    r"-?\d+(?:\.\d+)?(?:[-\u2013]-?\d+(?:\.\d+)?)+"  # a scale 0-10, a date 2026-05-03
    r"|\b(?:0|1)(?:\.0)?\s+to\s+\d+(?:\.\d+)?"  # a scale: 0 to 10
    r"|\d+(?:/\d+){2,}"  # a date: 3/5/2026
    r"|(?:/|\bout\s+of\b)\W{0,4}\d+(?:\.\d+)?"  # the end of a scale: /10, out of 10
    r"|(-?\d+(?:\.\d+)?)(?:\s+of\s+\d+)?"
)
"""Finds the number of a judge: the last alternative alone has a group, the others take what is no grade."""
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


def _with_one_group(pattern: str) -> str:
    if (count := re.compile(pattern).groups) != 1:
        raise ValueError(f"expected one group (...) around the number, and not {count}")
    return pattern


def _with_completion(prompt: str) -> str:
    if "{completion}" not in prompt and "{messages}" not in prompt:
        raise ValueError("expected {completion} in it, where the response is to stand, or {messages}")
    return prompt


Expression = Annotated[str, AfterValidator(_expression)]
Column = Annotated[str, Field(min_length=1)]
"""A column of the data; `reward_model.ground_truth` is a key of a mapping in a column."""


class NamedReward(Section):
    """What every entry of `reward.rewards` may have, whatever its kind."""

    kind: Any  # a Literal of each class's own
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

    def is_for(self, row: Mapping[str, object]) -> bool:
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
    """1 if the answer in the response is that of the data, letter by letter but for white space around it."""

    kind: Literal["exact"] = "exact"
    answer: Column = "answer"
    """Column of the gold answer."""
    answer_after: str = ""
    """Text in the column, e.g. `####` for GSM8K: the gold answer is what follows the last one. Empty: the
    whole column."""
    pattern: Expression = ""
    """Regular expression. Its last match in the response is the answer: the first group, or the whole match
    if there is none. Empty: the whole response."""
    ignore_case: bool = False
    """Treat upper and lower case as equal."""


class CodeReward(NamedReward):
    """What the program in a response is worth on the tests of its row; it runs in `reward.sandbox`."""

    kind: Literal["code"] = "code"
    tests: str = ""
    """Column of the tests. Empty: the first of the columns in docs/sandbox.md that a row has."""
    credit: Literal["all", "fraction"] = "all"
    """`all`: 1 if the program passes every test, else 0; `fraction`: the share of tests that it passes."""
    max_tests: int = Field(default=0, ge=0)
    """Use only the first so many tests of a row; 0: all."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Difference, relative and absolute, up to which two numbers are equal, in what a program prints or a
    function returns. Asserts compare as they say."""
    cpu_s: float = Field(default=10.0, gt=0)
    """Seconds of CPU of a program: for each input, or for all asserts together."""
    wall_s: float = Field(default=30.0, gt=0)
    """Seconds of the clock, likewise. A program that waited for a core most of that time is run again,
    alone."""
    total_s: float = Field(default=60.0, gt=0)
    """Seconds for all inputs of a response together; tests that are left then count as failed."""
    memory_mb: int = Field(default=1024, ge=64)
    """MB that a program may take, with all its processes."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads of a program side by side."""
    output_kb: int = Field(default=4096, ge=1)
    """KB that a program may print, and as much again on standard error."""
    file_mb: int = Field(default=16, ge=1)
    """MB of one file that a program writes; under bubblewrap also of all files together."""
    timeout_s: float | None = Field(default=900.0, gt=0)
    """Seconds for one group; a group that takes longer fails. The limits above usually end its programs
    first."""


class MathReward(NamedReward):
    """1 if math-verify finds the answer in the response equal to that of the data."""

    kind: Literal["math"] = "math"
    answer: Column = "answer"
    """Column of the gold answer, as plain text or LaTeX."""
    answer_after: str = ""
    """As in `exact`: `####` for GSM8K."""
    extract: Literal["auto", "boxed", "last_line"] = "auto"
    """Where the response has its answer. `boxed`: in its last `\\boxed{}`, and without one it gets 0.
    `last_line`: in its last line. `auto`: in the first of these that there is: box, words such as `the answer
    is`, last line. Text before `</think>` never counts."""
    cpu_s: float = Field(default=5.0, gt=0, le=3600)
    """Seconds of CPU time for a verdict. A response whose verdict takes longer gets 0."""


class ChoiceReward(NamedReward):
    """1 if the response chooses the letter of the data."""

    kind: Literal["choice"] = "choice"
    answer: Column = "answer"
    """Column of the right letter, or of its index from 0."""
    answer_after: str = ""
    """As in `exact`."""
    letters: str = Field(default="ABCD", min_length=2, max_length=26, pattern="^[A-Z]+$")
    """The letters to choose from."""


class Criterion(Section):
    """One line of a rubric."""

    criterion: str = Field(min_length=1)
    """What is asked for; it replaces `{criterion}` in the prompt."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Its share of the reward, relative to the others."""


class JudgeReward(NamedReward):
    """A number that a model behind an OpenAI-compatible endpoint gives to the response, as 0 to 1."""

    kind: Literal["judge"] = "judge"
    base_url: str = Field(min_length=1)
    """Address of the endpoint, e.g. `http://localhost:8000/v1`; `/chat/completions` is added to it."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable of the reward worker that holds the key. If it is not set, no key is sent."""
    prompt: Annotated[str, AfterValidator(_with_completion)] = JUDGE_PROMPT
    """What the judge is asked. `{question}` is the prompt, `{completion}` the response (of an agent its last
    answer), `{messages}` the whole conversation, `{criterion}` that of the rubric; `{answer}` or any other
    name is a column."""
    rubric: tuple[Criterion, ...] = Field(default=(), strict=False)
    """Criteria, `{criterion: TEXT, weight: 1.0}` each, and each a question of its own; the reward is the
    weighted mean. Empty: one question."""
    number: Annotated[Expression, AfterValidator(_with_one_group)] = JUDGE_NUMBER
    """Regular expression with one group; the group's last match in the judge's answer is the number. The
    default reads 3 in `3/10`, `3 out of 10` and `3 on a scale of 0 to 10`, and ignores dates."""
    lowest: float = Field(default=0.0, allow_inf_nan=False)
    """The number that becomes the reward 0; a lower number is no answer."""
    highest: float = Field(default=10.0, allow_inf_nan=False)
    """The number that becomes the reward 1; a higher number is no answer."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of the judge's answer. One that is cut off there is no answer, whatever numbers it has."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge."""
    body: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further keys of the request, passed unchanged."""
    concurrency: int = Field(default=16, ge=1)
    """Requests in flight in each process."""
    request_s: float = Field(default=60.0, gt=0)
    """Seconds for one request."""
    retries: int = Field(default=4, ge=0)
    """Times that a request is sent again: after 408, 409, 425, 429, 5xx, no answer, or one without a
    number."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Seconds before a request is sent again for the first time, twice as many before each further time. If
    the endpoint sends `Retry-After`, that counts instead. Never more than 60."""
    cache: bool = True
    """Keep numbers by digest of the request in `judge.db` of the run directory: the same request is not sent
    again, not even after a resume."""
    timeout_s: float | None = Field(default=600.0, gt=0)
    """Seconds for one response, all requests and pauses included."""

    @model_validator(mode="after")
    def _have_a_range(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"expected `lowest`, {self.lowest:g}, below `highest`, {self.highest:g}")
        if self.rubric and "{criterion}" not in self.prompt:
            raise ValueError("expected a `prompt` with {criterion} in it, since there is a `rubric`")
        return self


class ModelReward(NamedReward):
    """The output of a sequence-classification model with one output, on `reward.device`."""

    kind: Literal["model"] = "model"
    path: str = Field(min_length=1)
    """Directory of the model, with its tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of its weights."""
    batch: int = Field(default=8, ge=1)
    """Responses in one forward pass."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens of prompt and response together, no more than the model has positions for; a longer text
    loses its beginning."""
    sigmoid: bool = False
    """Give the sigmoid of the output, which is between 0 and 1."""


class ReasoningGymReward(NamedReward):
    """The score, from 0 to 1, that a data set of reasoning-gym gives to the answer in the response."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = ""
    """Name of the data set, such as `chain_sum`. Empty: `metadata.source_dataset` of the row."""
    entry: Column = "entry"
    """Column with the whole item (question, answer, metadata). Without it the row itself is the item."""
    cpu_s: float = Field(default=10.0, gt=0, le=3600)
    """Seconds of CPU time for a verdict. A response whose verdict takes longer gets 0."""


@dataclass(frozen=True, slots=True)
class RewardKind:
    """How a named reward is computed."""

    options: type[NamedReward]
    module: str
    """Has `make(options, place)`; imported in the processes of this reward only."""
    extra: str = ""
    """Of pyproject.toml, that the module needs."""
    columns: Callable[[Any], tuple[str, ...]] = lambda options: ()  # which are of the class `options`
    """Columns that a row must have, by options."""
    out_of_cpu: float | None = None
    """What a response gets over which the process used up the CPU time that the module allowed it
    (RLIMIT_CPU); None: its group fails."""
    processes: int | None = None
    """Processes of a worker; None: `reward.processes`."""
    concurrency: int | None = None
    """Responses in flight in a process, of whole groups; None: `reward.concurrency`."""


def _answer(options: Any) -> tuple[str, ...]:  # of any kind that names the column of the answer
    return (options.answer,)


def _of_prompt(options: JudgeReward) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in FIELD.findall(options.prompt) if name not in JUDGED))


KINDS: dict[str, RewardKind] = {
    "function": RewardKind(FunctionReward, "workers.reward.kinds.function"),
    "exact": RewardKind(ExactReward, "workers.reward.kinds.exact", columns=_answer),
    "math": RewardKind(
        MathReward, "workers.reward.kinds.math", extra="math", columns=_answer, out_of_cpu=0.0
    ),
    "choice": RewardKind(ChoiceReward, "workers.reward.kinds.choice", columns=_answer),
    "judge": RewardKind(JudgeReward, "workers.reward.kinds.judge", extra="judge", columns=_of_prompt),
    "model": RewardKind(ModelReward, "workers.reward.kinds.model", processes=1),
    "reasoning_gym": RewardKind(
        ReasoningGymReward, "workers.reward.kinds.reasoning_gym", extra="reasoning-gym", out_of_cpu=0.0
    ),
    "code": RewardKind(CodeReward, "workers.reward.kinds.code", concurrency=1),
}  # fmt: skip
"""Every kind of reward."""


def _kind_of(entry: object) -> str:
    if isinstance(entry, Mapping):
        kind = cast("Mapping[str, object]", entry).get("kind", "function")
    else:
        kind = getattr(entry, "kind", "")
    return kind if isinstance(kind, str) else ""


if TYPE_CHECKING:
    AnyReward = NamedReward
else:
    AnyReward = Annotated[
        Union[tuple(Annotated[kind.options, Tag(name)] for name, kind in KINDS.items())],  # noqa: UP007  # of a tuple
        Discriminator(
            _kind_of,
            custom_error_type="reward_kind",
            custom_error_message=f"a mapping whose `kind` is one of {', '.join(KINDS)}",
        ),
    ]


def entry_of(function: str) -> NamedReward:
    """The reward that `reward.function` names: an import path, or a kind with its options at their defaults.

    Raises: pydantic.ValidationError if that kind has options without a default.
    """
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


def find(row: Mapping[str, object], column: str, default: object = None) -> object:
    """What a row has in a column; of `a.b` the key `b` of the mapping in `a`; `default` if there is none."""
    if column in row:
        return row[column]
    first, _, rest = column.partition(".")
    inner = row.get(first)
    if not rest or not isinstance(inner, Mapping):
        return default
    return find(cast("Mapping[str, object]", inner), rest, default)
