"""Reads YAML for configurations, within bounds of size and depth, and writes it.

Invariants: time and memory are bounded: an alias counts as many values as it stands for, and no value holds
itself; no tag makes an object; refused text raises yaml.YAMLError, with the line.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from controller.config.known_names import models_in
from protocol.plain_text import has_half_characters

MAX_CHARACTERS = 1 << 18
MAX_NODES = 10_000  # values, keys and collections, aliases written out
MAX_DEPTH = 32
MAX_DIGITS = 100  # of a number, signs and points included
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
TEXT = "tag:yaml.org,2002:str"
NOT_RESOLVED = (*NUMBERS, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
RESOLVED = {
    "tag:yaml.org,2002:bool": (r"(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"([-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$",
        "-+.0123456789",
    ),
}
"""By type, the pattern of its values and the characters they may begin with: nearly as in YAML 1.2.

YAML 1.1 takes `yes` and `on` for booleans, `48:00:00` for a number of base 60, `010` for one of base 8, and
`1e-6` for a text.
"""

WORDS = {"yes": True, "on": True, "no": False, "off": False}
OPTIONS = dict[str, bool | int | float | str]  # a field of which no single key is known


class _Loader(yaml.SafeLoader):
    """Loads YAML with the few implicit types of RESOLVED.

    `1e-6` is a number, and so is `010`, which is ten; `2026-01-01`, `48:00:00` and `no` are strings.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Raises: yaml.YAMLError, also for what only looks like a number, such as `0x_`."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise _refused(node.start_mark, f"{str(node.value)[:40]!r} is no number: {error}") from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer of base 16 (0x) or 2 (0b), else 10. Raises: ValueError."""
        digits = self.construct_scalar(node).replace("_", "")
        return int(digits, 16 if "0x" in digits else 2 if "0b" in digits else 10)


class _Dumper(yaml.SafeDumper):
    """Writes YAML, with quotes around texts that this module or YAML 1.1 would read as another type."""


_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] not in NOT_RESOLVED]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _tag, (_form, _first) in RESOLVED.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(_tag, re.compile(_form), list(_first))


def write_yaml(tree: Mapping[str, Any]) -> str:
    """A document that `read_yaml`, and any other reader, reads as `tree`; keys keep their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def quoted_for_a_shell(key: str, text: str) -> str:
    """A sentence that shows how to quote, on a command line, a text that YAML reads as another type."""
    value = yaml.dump(text, default_style='"', allow_unicode=True, width=MAX_CHARACTERS).strip()
    word = shlex.quote(f"{key}={value}")
    return f"the key takes a text, and YAML reads something else there; with quotes of YAML's: {word}"


def read_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """The value of a document, and its nodes, which hold line numbers; (None, None) if it is empty.

    Raises: yaml.YAMLError.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(
            f"it has more than {MAX_CHARACTERS:,} characters; expected a configuration, which is shorter"
        )
    _measure(text)
    as_written, loader = _Loader(text), _Loader(text)
    try:
        found = loader.get_single_node()
        value = None if found is None else _apart(loader.construct_document(found))
        return value, as_written.get_single_node()  # construction writes out what `<<` stands for
    finally:
        as_written.dispose()
        loader.dispose()


def read_words(model: type[BaseModel], tree: Any) -> None:
    """Turn `yes`, `no`, `on` and `off` into booleans in boolean fields; elsewhere they stay texts."""
    for name, field in model.model_fields.items() if isinstance(tree, dict) else ():
        kind, value = field.annotation, tree.get(name)
        if isinstance(value, str) and bool in (kind, *get_args(kind)):
            tree[name] = WORDS.get(value.lower(), value)
        elif isinstance(value, dict) and kind == OPTIONS:
            tree[name] = {k: WORDS.get(v.lower(), v) if isinstance(v, str) else v for k, v in value.items()}
        for section, inside in _sections(kind, value):
            read_words(section, inside)


def _sections(kind: Any, value: Any) -> Iterator[tuple[type[BaseModel], Any]]:
    """Sections in the value of a field, each with its model; of several models that of the same `kind`."""
    is_named = get_origin(kind) is dict and isinstance(value, dict)
    entries = value.values() if is_named else value if isinstance(value, list) else [value]
    models = [*models_in(kind)]
    for entry in entries if models else ():
        for one in models:
            if len(models) == 1 or (
                isinstance(entry, dict) and one.model_fields["kind"].default == entry.get("kind")
            ):
                yield one, entry


def _apart(value: Any) -> Any:
    """The value with a copy in place of each alias, so that an override changes one place alone."""
    if isinstance(value, dict):
        return {key: _apart(inner) for key, inner in value.items()}
    return [_apart(inner) for inner in value] if isinstance(value, list) else value


def _measure(text: str) -> None:
    """Check the bounds without building values. Raises: yaml.YAMLError if the text exceeds them."""
    loader, count = _Loader(text), 0
    anchors: dict[str, int] = {}  # -> nodes that an alias stands for
    open_collections: list[tuple[str | None, int]] = []  # anchor, and the count before
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_collections.pop()
                if anchor is not None:
                    anchors[anchor] = count - before
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in anchors:
                    what = f"the alias *{event.anchor} stands for what it is in, or for nothing before it"
                    raise _refused(event.start_mark, f"{what}; write the value out")
                count += anchors[event.anchor]
            elif isinstance(event, yaml.NodeEvent):
                count += 1
                _check_node(loader, event)
                if isinstance(event, yaml.CollectionStartEvent):
                    open_collections.append((event.anchor, count - 1))
                elif event.anchor is not None:
                    anchors[event.anchor] = 1
            if count > MAX_NODES or len(open_collections) > MAX_DEPTH:
                much = f"values nested deeper than {MAX_DEPTH}" if count <= MAX_NODES else (
                    f"more than {MAX_NODES:,} values, aliases written out"
                )  # fmt: skip
                raise _refused(event.start_mark, f"there are {much}; no configuration needs that")
    finally:
        loader.dispose()


def _check_node(loader: _Loader, event: yaml.NodeEvent) -> None:
    tag = getattr(event, "tag", None)
    if tag not in (None, TEXT):
        raise _refused(event.start_mark, f"it has the tag {tag[:80]!r}; tags are not used here, leave it out")
    if isinstance(event, yaml.ScalarEvent) and has_half_characters(event.value):
        half = "a text has half a character, such as \\ud800 without its second half"
        raise _refused(event.start_mark, f"{half}; expected whole ones")
    if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_DIGITS:
        resolved = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if resolved in NUMBERS:
            many = f"a number has {len(event.value):,} digits, beginning with {event.value[:20]}"
            raise _refused(event.start_mark, f"{many}; expected at most {MAX_DIGITS}")


def _refused(mark: Any, problem: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {mark.line + 1}: {problem}")
