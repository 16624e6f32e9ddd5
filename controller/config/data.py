"""The section `data`: where prompts come from, how rows become prompts, and how sources are mixed.

Invariant: pure, and below the configuration, which includes it.
"""

from string import Formatter
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from protocol.settings import Section

Scalar = str | int | float | bool | None
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OF_THE_WHOLE = ("shuffle", "epochs", "sources", "schedule", "stages", "pass_reward")


class RowSettings(Section):
    """One source of rows, and how a row becomes a prompt."""

    path: str = ""
    """JSONL, Parquet, CSV or TSV; several of one format by a pattern (`train-*.parquet`) or their folder; a
    folder saved by `datasets.save_to_disk`; a name of the Hugging Face Hub (`openai/gsm8k`), where there is a
    network; `reasoning_gym:NAME?size=1000&seed=0`, a set of reasoning-gym; or an import path
    `module:function` or `file.py:function` of `prompts(*, seed)` that returns an iterable of dictionaries."""
    split: str = ""
    """Split of a saved `DatasetDict` or of a data set of the Hub."""
    subset: str = ""
    """Configuration of a data set of the Hub, such as `main` of `openai/gsm8k`."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Map of the names that StaleFlow and the reward expect to the names in the data, e.g. `{prompt:
    question}`. A dot goes into a mapping: `{answer: reward_model.ground_truth}`. `prompt` is a string or a
    list of chat messages."""
    prompt: str = ""
    """Template that makes the prompt, with columns in braces: `"{question}\\nAnswer with a number."`. Braces
    that are text are doubled. Empty: the column `prompt`."""
    system: str = ""
    """System prompt: the first chat message of each prompt that has none of its own."""
    is_chat: bool = False
    """Make one chat message of the user of a prompt that is text, so that the model's chat template is
    applied. `system` does so too."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, e.g. `{enable_thinking: false}`. A row's own column of this name is put
    over them."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of tools (as OpenAI has them) that the chat template shows. A row's own `tools` count
    instead."""
    where: dict[str, list[Scalar]] = Field(default_factory=dict)
    """Keep only rows whose column has one of these values, e.g. `{level: [3, 4]}`; columns as `columns` names
    them."""
    min_chars: int = Field(default=0, ge=0)
    """Leave out prompts shorter than this, in characters of their text."""
    max_chars: int = Field(default=0, ge=0)
    """Leave out prompts longer than this; 0 keeps all. In tokens, `rollout.max_prompt_tokens` bounds them."""

    @field_validator("prompt")
    @classmethod
    def _plain_names(cls, template: str) -> str:
        template_columns(template)
        return template


class SourceSettings(RowSettings):
    """One of several sources. A key that is not given counts as `data` has it."""

    name: str = ""
    """Names the source in messages and stages, and goes with each of its rows as the column `source`. Empty:
    the name of its file."""
    weight: Weight = 1.0
    """Share of the prompts, relative to the other sources'."""
    max_response_tokens: int = Field(default=0, ge=0)
    """A response to a prompt of this source that reaches this many tokens ends with `length`; at most
    `rollout.max_response_tokens`, which 0 stands for. An agent's turns end by `agent.max_turn_tokens`
    alone."""
    priority: int = 0
    """Of the prompts that wait, those of the highest priority start first. How many are read is a matter of
    `weight`, so no source waits for ever: at most two batches of prompts wait, and one of a source that gives
    a tenth of the prompts starts within 20 batches."""
    quota: float = Field(default=1.0, gt=0, le=1)
    """Share of the groups in the system (started and not yet trained) that this source may have while prompts
    of other sources wait: no more of long or costly episodes at a time. Where none does, it gives way, so
    that no place stays empty."""

    @property
    def is_ranked(self) -> bool:
        """Whether its prompts may start in another order than they were read in."""
        return self.priority != 0 or self.quota < 1


class StageSettings(Section):
    """Weights of sources from one train step on."""

    from_step: int = Field(ge=0)
    """Train step that the stage begins at; the first stage begins at 0."""
    weights: dict[str, Weight]
    """Weight by name of source; one that is not named gets nothing."""


class DataSettings(RowSettings):
    """Prompts."""

    shuffle: bool = True
    """Shuffle every pass over the data by `run.seed`; an iterable is taken as it comes. Parquet is shuffled
    by row groups, and in windows of at most 65,536 rows: docs/data.md."""
    epochs: int = Field(default=0, ge=0)
    """Passes over the data, over each source if there are several; 0 repeats until `run.steps` are made."""
    sources: list[SourceSettings] = Field(default_factory=list)
    """Several sources in place of `path`, each with `path` and, if need be, `name`, `weight` and the keys
    above; what a source leaves out counts as `data` has it."""
    schedule: str = "constant"
    """How weights change: `constant`; `stages`, by train step; `ramp`, the same, linearly from stage to
    stage; `pass_rate`, most of the sources that the policy solves half of; or an import path of a function
    like those of strategies/schedules.py."""
    stages: list[StageSettings] = Field(default_factory=list)
    """Stages of `stages` and `ramp`, e.g. `{from_step: 100, weights: {easy: 1, hard: 3}}`."""
    pass_reward: float = 0.5
    """A response passes, for `pass_rate`, if its reward is at least this."""

    @model_validator(mode="after")
    def _name_the_sources(self) -> Self:
        if not self.sources:
            return self
        common = {k for k in self.model_fields_set if k not in OF_THE_WHOLE and k != "path"}
        whole = {name: getattr(self, name) for name in common}
        named = []
        for source in self.sources:
            own = {name: getattr(source, name) for name in source.model_fields_set}
            if not own.get("name"):
                own["name"] = _stem(source.path, source.split)
            named.append(source.model_copy(update={**whole, **own}))
        object.__setattr__(self, "sources", named)  # it is frozen
        return self

    @property
    def each(self) -> "list[tuple[str, DataSettings]]":
        """(place in the configuration, settings) of each source, as if it were the only one."""
        if not self.sources:
            return [("data", self)]
        return [(f"data.sources.{number}", self._alone(one)) for number, one in enumerate(self.sources)]

    def _alone(self, source: SourceSettings) -> "DataSettings":
        own = {name: getattr(source, name) for name in RowSettings.model_fields}
        return DataSettings(shuffle=self.shuffle, epochs=self.epochs).model_copy(update=own)


def template_columns(template: str) -> list[str]:
    """Columns that a template names. Raises: ValueError in words if it names them otherwise."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"a template whose braces match ({error}); braces that are text are doubled"
        ) from None
    for _, name, spec, conversion in parts:
        if name is not None and (not name or name.isdigit() or spec or conversion or "[" in name):
            raise ValueError(
                f"columns by name alone, as in {{question}}, and not {{{name}{'!' * bool(conversion)}"
                f"{conversion or ''}{':' * bool(spec)}{spec}}}; braces that are text are doubled"
            )
    return [name for _, name, _, _ in parts if name is not None]


def _stem(path: str, split: str) -> str:
    """A name for a source that got none."""
    file = path.rstrip("/").rpartition("/")[2]
    stem = file.partition(":")[2] if ".py:" in file else file.partition(".")[0]
    return f"{stem or path}{f'-{split}' if split else ''}"
