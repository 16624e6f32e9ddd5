"""Writes docs/configuration.md, and the schema beside it for editors, from the configuration's models:
`python docs/make_configuration.py`."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pydantic import BaseModel  # noqa: E402
from pydantic.fields import FieldInfo  # noqa: E402

from controller.config.models import Config, Section  # noqa: E402
from docs import make_schema  # noqa: E402
from protocol.rewards.kinds import KINDS, NamedReward  # noqa: E402

INTRODUCTION = """# Configuration

The keys that a user sets; all others are on the [advanced page](configuration_advanced.md).
An unknown key is refused. Any key can be set on the command line:
`launch.py CONFIG.yaml trainer.lr=1e-5`.

A value may name environment variables: `${NAME}`, or `${NAME:-default}`; `$${` stands for the characters
`${`. What is kept of a run has the text as it was written, so that a secret stays in the environment;
numbers, words of a choice, import paths and paths of `model` and data are kept as they were found. Workers
are told the values.

A path may begin with `~`: the home of the user who reads the configuration.

An editor with a YAML language server completes keys and shows the meanings below, if the file begins with
`# yaml-language-server: $schema=PATH/configuration.schema.json`: the path of the file beside this one.

Generated from the models in `protocol/settings.py` and `controller/config/models.py` by
`python docs/make_configuration.py`; do not edit.
"""

INTRODUCTION_ADVANCED = """# Configuration: advanced keys

Every key that is not on the [first page](configuration.md), which also says how keys are written.

Generated from the models in `protocol/settings.py` and `controller/config/models.py` by
`python docs/make_configuration.py`; do not edit.
"""

FIRST_PAGE = {
    "run": ("name", "dir", "seed", "steps", "resume"),
    "model": ("path", "factory", "dtype"),
    "data": ("path", "columns", "prompt", "system", "is_chat", "shuffle", "epochs", "sources"),
    "reward": ("function", "rewards", "workers", "processes", "concurrency", "timeout_s"),
    "rollout": (
        "engine", "vllm.tensor_parallel_size", "vllm.gpu_memory_utilization", "instances", "group_size",
        "max_prompt_tokens", "max_response_tokens", "max_running", "sampling.temperature", "device",
        "threads",
    ),
    "trainer": (
        "algorithm", "batch_groups", "minibatches", "lr", "warmup_steps", "lora.rank", "kl_coefficient",
        "max_tokens_per_microbatch", "ranks", "device", "threads", "checkpoint_steps", "keep_checkpoints",
    ),
    "staleness": ("max_staleness", "strategy", "filter"),
    "evaluation": ("every_steps", "data", "samples", "sampling.temperature"),
    "logging": ("console", "level"),
}  # fmt: skip
"""By section, the keys that a user sets: what is trained, on what, how large, and how stale it may be. All
others, and new ones until they are named here, are on configuration_advanced.md."""


MAPPINGS = "mapping", "mappings"
"""In front of types, which mean nothing to a user."""
HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"
REWARDS = """# Rewards by name

Every key of an entry of `reward.rewards`: first the keys that each entry may have, then the options of each
kind. [rewards.md](rewards.md) shows them in use.

Generated from the models in `protocol/rewards/kinds.py` by `python docs/make_configuration.py`; do not edit.

## Every entry

"""


def render() -> str:
    """The first page as text."""
    return INTRODUCTION + _sections(is_first=True)


def render_advanced() -> str:
    """The advanced page as text."""
    return INTRODUCTION_ADVANCED + _sections(is_first=False)


def render_rewards() -> str:
    """The page of named rewards as text: a table per kind."""
    text = REWARDS + _table(list(NamedReward.model_fields.items())[1:])
    for name, kind in KINDS.items():
        own = [entry for entry in kind.options.model_fields.items() if _is_of_the_kind(*entry)]
        text += f"\n## {name}\n\n{_prose(kind.options.__doc__ or '')}\n\n" + _table(own)
    return text


def _is_of_the_kind(key: str, entry: FieldInfo) -> bool:
    """Whether a key of a kind is not that of every entry, or has another default there."""
    of_every = NamedReward.model_fields.get(key)
    return key != "kind" and (of_every is None or of_every.default != entry.default)


def _sections(*, is_first: bool) -> str:
    return "".join(_section(name, field, is_first=is_first) for name, field in Config.model_fields.items())


def _section(name: str, field: FieldInfo, *, is_first: bool) -> str:
    """A heading and a table; "" for a section without keys on this page."""
    model = field.annotation
    if not (isinstance(model, type) and issubclass(model, Section)):
        return f"\n## {name}\n\n{_table(_fields(model, f'{name}.'))}" if is_first else ""
    first = {f"{name}.{key}" for key in FIRST_PAGE.get(name, ())}
    fields = _fields(model, f"{name}.")
    chosen = [(key, entry) for key, entry in fields if (key in first) == is_first]
    if not chosen:
        return ""
    text = f"\n## {name}\n\n{_prose(model.__doc__ or '')}\n\n{_table(chosen)}"
    is_split = 0 < len(first) < len(fields)
    other = "configuration_advanced.md" if is_first else "configuration.md"
    return f"{text}\nFurther keys: [{other}#{name}]({other}#{name}).\n" if is_split else text


def _table(fields: list[tuple[str, FieldInfo]]) -> str:
    rows = [
        f"| `{key}` | {_kind(entry)} | {_default(entry)} | {_cell(entry.description or '')} |"
        for key, entry in fields
    ]
    return HEAD + "\n".join(rows) + "\n"


def _fields(model: Any, prefix: str) -> list[tuple[str, FieldInfo]]:
    """The keys of a section; of a key that stands in none, that key."""
    if not (isinstance(model, type) and issubclass(model, Section)):
        return [(name := prefix.removesuffix("."), Config.model_fields[name])]
    found: list[tuple[str, FieldInfo]] = []
    for name, entry in model.model_fields.items():
        inner = entry.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            found += _fields(inner, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", entry))
    return found


def _kind(entry: FieldInfo) -> str:
    return _cell(_words(entry.annotation, entry.metadata))


def _words(annotation: Any, limits: Iterable[Any] = (), many: bool = False) -> str:
    """What a value may be, in words: "list of `int`, ≥ 1"; `many`: in the middle of other words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, *told = inner
        if any("Discriminator" in str(one) for one in told):
            return MAPPINGS[many]
        return _words(kind, [limit for one in told for limit in getattr(one, "metadata", [one])], many)
    if origin is Literal:
        text = ", ".join(f"`{value}`" for value in inner)
    elif origin in (Union, UnionType):
        text = " or ".join(_words(one, many=True) for one in inner)
    elif origin in (list, tuple) and (origin is list or Ellipsis in inner):
        text = f"list of {_words(inner[0], many=True)}"
    elif origin is tuple:
        text = f"list of {len(inner)} {_words(inner[0], many=True)}"
    elif origin is dict:
        text = f"{MAPPINGS[many]} of names to {_words(inner[1], many=True)}"
    elif annotation is NoneType:
        text = "`null`"
    elif annotation is Any:
        text = "anything"
    elif issubclass(annotation, Section | BaseModel):
        text = MAPPINGS[many]
    else:
        text = f"`{annotation.__name__}`"
    return (" " if many else ", ").join([text, *_limits(limits)])


def _limits(limits: Iterable[Any]) -> list[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return [
        f"{sign} {getattr(item, name):g}"
        for item in limits
        for name, sign in signs.items()
        if getattr(item, name, 2**20) < 2**20  # the width of an integer tells nobody anything
    ]


def _default(entry: FieldInfo) -> str:
    if entry.is_required():
        return "needed"
    value = entry.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        value = json.dumps(value)  # as in YAML
    return "" if value == "" else _cell(f"`{list(value) if isinstance(value, tuple) else value}`")


def _prose(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "configuration_advanced.md").write_text(render_advanced(), encoding="utf-8")
    (ROOT / "docs" / "configuration.md").write_text(render(), encoding="utf-8")
    (ROOT / "docs" / "reward_kinds.md").write_text(render_rewards(), encoding="utf-8")
    (ROOT / "docs" / make_schema.FILE).write_text(make_schema.render(), encoding="utf-8")
