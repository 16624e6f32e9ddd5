"""`${NAME}` and `${NAME:-default}` in the values of a configuration: environment variables, such as secrets.

Invariants: keys are not expanded; `$${` stands for the characters `${`; any other use of `${` is refused, and
a variable that is not set is an error, never an empty text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from protocol.plain_text import has_half_characters

Path = tuple[Any, ...]  # keys of mappings and indices of lists, from the top
PLACE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?", re.ASCII)


class NotExpanded(Exception):
    """A value names an unset variable, or none after `${`; the text is for the user."""


def places(tree: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Path and text of every value with `${` in it."""
    if isinstance(tree, dict | list):
        entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in entries:
            yield from places(value, (*path, key))
    elif isinstance(tree, str) and "${" in tree:
        yield path, tree


def put(tree: Any, path: Path, value: Any) -> None:
    """Set the value at a path that exists."""
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def expand(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables expanded. As in a shell, a default also replaces an empty value.

    Raises: NotExpanded.
    """

    def value(place: re.Match[str]) -> str:
        name, default = place["name"], place["default"]
        if place[0] == "$${":
            return "${"
        if name is None:
            raise NotExpanded(
                f"{text!r} has `${{` without the name of an environment variable. Expected ${{NAME}} or "
                "${NAME:-default}; write $${ for the characters themselves."
            )
        if has_half_characters(variables.get(name, "")):
            raise NotExpanded(
                f"names the environment variable {name}, whose value is no text in UTF-8. Set it to one."
            )
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise NotExpanded(
                f"names the environment variable {name}, which is not set. Set it (export {name}=...), or "
                f"write ${{{name}:-default}}."
            )
        return variables[name]

    return PLACE.sub(value, text)


def is_text(model: type[BaseModel], path: Path) -> bool:
    """Whether the field at a path is a text; an expanded value of another type is read as YAML."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(part)
            kind = field.annotation if field is not None else str
        elif get_origin(kind) in (dict, tuple, list):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
        elif get_origin(kind) is Annotated:  # one of several models
            models = [get_args(one)[0] for one in get_args(get_args(kind)[0])]
            fields = [one.model_fields[part] for one in models if part in one.model_fields]
            kind = fields[0].annotation if fields else str
    if get_origin(kind) is Annotated:  # a text with limits, in a list
        kind = get_args(kind)[0]
    return get_origin(kind) is not dict and {*(get_args(kind) or (kind,))} <= {str, type(None)}
