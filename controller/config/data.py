"""The section `data`: where prompts come from, how rows become prompts, and how sources are mixed.

Invariant: pure; `controller/config/models.py` imports this module, which does not import it.
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
    network; `reasoning_gym:NAME?size=1000&seed=0`, a set of reasoning-gym; `verifiers:TASKSET?take=1000`,
    tasks of verifiers; or an import path `module:function` or `file.py:function` of `prompts(*, seed)`, a
    function that returns an iterable of dictionaries."""
    split: str = ""
    """Split of a saved `DatasetDict` or of a data set of the Hub."""
    subset: str = ""
    """Configuration of a data set of the Hub, such as `main` of `openai/gsm8k`."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Map of the names that StaleFlow and the reward expect to the names in the data, e.g. `{prompt:
    question}`. A dot names a key inside a mapping: `{answer: reward_model.ground_truth}`. `prompt` is a
    string or a list of chat messages."""
    prompt: str = ""
    """Template of the prompt, with columns in braces: `"{question}\\nAnswer with a number."`. Write literal
    braces twice. Empty: the column `prompt`."""
    system: str = ""
    """System prompt: added as the first chat message to each prompt that does not begin with one."""
    is_chat: bool = False
    """Turn a prompt that is text into one chat message of the user, so that the model's chat template is
    applied. `system` does so too."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, e.g. `{enable_thinking: false}`. A row's own column of this name
    overrides them, key by key."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of tools, in the format of OpenAI, that the chat template shows. A row's own `tools` replace
    them."""
    where: dict[str, list[Scalar]] = Field(default_factory=dict)
    """Keep only rows whose columns have one of these values, e.g. `{level: [3, 4]}`; with the names that
    `columns` gives."""
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
    """One of several sources. A key that is left out has its value from `data`."""

    name: str = ""
    """Name of the source in messages and stages, and in the column `source` of each of its rows. Empty: the
    name of its file."""
    weight: Weight = 1.0
    """Share of the prompts, relative to the weights of the other sources."""
    max_response_tokens: int = Field(default=0, ge=0)
    """A response to a prompt of this source that reaches this many tokens ends with `length`; at most
    `rollout.max_response_tokens`, which 0 stands for. An agent's turns end by `agent.max_turn_tokens`
    alone."""
    priority: int = 0
    """Waiting prompts of the highest priority start first. How many are read is a matter of
    `weight`, so no source waits for ever: at most two batches of prompts wait, or 64 prompts if that is more,
    and one of a source that gives a tenth of the prompts starts within ten times as many."""
    quota: float = Field(default=1.0, gt=0, le=1)
    """Largest share of the groups in the system (started and not yet trained) that this source may have while
    prompts of other sources wait: it limits long or costly episodes. Without such prompts the source may
    exceed it, so that no place stays empty."""

    @property
    def is_ranked(self) -> bool:
        """Whether its prompts may start in another order than they were read."""
        return self.priority != 0 or self.quota < 1


class StageSettings(Section):
    """Weights of the sources from a train step on."""

    from_step: int = Field(ge=0)
    """Train step at which the stage begins; 0 for the first stage."""
    weights: dict[str, Weight]
    """Weight by name of source; a source that is not named has weight 0."""


class DataSettings(RowSettings):
    """The prompts of training."""

    shuffle: bool = True
    """Shuffle every pass over the data by `run.seed`; an iterable is taken as it comes. Parquet is shuffled
    by row groups, and in windows of at most 65,536 rows: docs/data.md."""
    epochs: int = Field(default=0, ge=0)
    """Passes over the data, over each source if there are several; 0 repeats until `run.steps` are made."""
    sources: list[SourceSettings] = Field(default_factory=list)
    """Several sources in place of `path`, each with `path` and, if need be, `name`, `weight` and the keys
    above; a key that a source leaves out has its value from `data`."""
    schedule: str = "constant"
    """How the weights of sources change: `constant`; `stages`, by train step; `ramp`, linearly from stage to
    stage; `pass_rate`, most for sources of which the policy solves half; or an import path of a function
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
    """Columns that a template names. Raises: ValueError, with a text for the user, if it is malformed."""
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
    """The name of a source without `name`: that of its file, or the function in it, and the split."""
    file = path.rstrip("/").rpartition("/")[2]
    stem = file.partition(":")[2] if ".py:" in file else file.partition(".")[0]
    return f"{stem or path}{f'-{split}' if split else ''}"
