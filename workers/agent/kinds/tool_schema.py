"""Makes tools from methods: a schema from the signature and the docstring, and checks of calls against it.

Invariant: a text of the policy raises nothing but ToolRefused, whose message is the tool's answer.
"""

import inspect
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from protocol.errors import ConfigError

PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
ARGUMENT = re.compile(r"^\s{2,}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class ToolRefused(Exception):
    """A call that cannot be made; the message goes back to the policy."""


class Tool(NamedTuple):
    """One method that the policy may call."""

    name: str
    schema: dict[str, Any]
    types: dict[str, Any]  # of its parameters
    required: tuple[str, ...]


def tool_of(method: Callable[..., Any], name: str) -> Tool:
    """The tool of a method. Raises: ConfigError without a docstring, or if a type is not one of JSON's."""
    documentation = inspect.getdoc(method) or ""
    if not documentation.strip():
        raise ConfigError(
            f"The tool {name!r} has no docstring, which is what tells the policy of it. Write one, or begin "
            "the method's name with an underscore if it is no tool."
        )
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        raise ConfigError(f"The types of the tool {name!r} cannot be read: {error}.") from None
    parameters = [each for key, each in inspect.signature(method).parameters.items() if key != "self"]
    properties: dict[str, Any] = {}
    described = _described(documentation)
    for each in parameters:
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) or each.name not in hints:
            raise ConfigError(
                f"The parameter {each.name!r} of the tool {name!r} has no type; expected one that JSON has, "
                "such as `int` or `list[str]`."
            )
        properties[each.name] = _schema(hints[each.name], f"{name}({each.name})")
        if each.name in described:
            properties[each.name]["description"] = described[each.name]
    required = tuple(each.name for each in parameters if each.default is each.empty)
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": documentation.partition("\n\n")[0].strip(),
            "parameters": {"type": "object", "properties": properties, "required": list(required)},
        },
    }
    return Tool(name, schema, {each.name: hints[each.name] for each in parameters}, required)


def arguments_of(tool: Tool, text: str) -> dict[str, Any]:
    """The checked arguments of a call. Raises: ToolRefused."""
    try:
        arguments = json.loads(text, parse_constant=_refuse) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ToolRefused(f"The arguments of {tool.name} are no JSON: {error}.") from None
    if not isinstance(arguments, Mapping):
        raise ToolRefused(f"The arguments of {tool.name} are no JSON object.")
    if unknown := [name for name in arguments if name not in tool.types]:
        known = ", ".join(tool.types) or "none"
        raise ToolRefused(f"{tool.name} has no argument {unknown[0]!r:.60}. It has: {known}.")
    if lacking := [name for name in tool.required if name not in arguments]:
        raise ToolRefused(f"{tool.name} lacks the argument {lacking[0]!r}.")
    for name, value in arguments.items():
        if not _fits(value, tool.types[name]):
            wanted = json.dumps(_schema(tool.types[name], name))
            raise ToolRefused(f"The argument {name!r} of {tool.name} is {value!r:.80}; expected {wanted}.")
    return dict(arguments)


def _refuse(name: str) -> None:
    """Raises: ValueError, for `NaN` and `Infinity`, which Python reads and JSON does not have."""
    raise ValueError(f"it has no {name}")


def _schema(kind: Any, where: str) -> dict[str, Any]:
    """JSON schema of a type. Raises: ConfigError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin is tuple and arguments and Ellipsis not in arguments:
        places = [_schema(each, where) for each in arguments]
        return {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}
    if kind is list or origin in (list, tuple):
        return {"type": "array"} | ({"items": _schema(arguments[0], where)} if arguments else {})
    if origin is dict:
        return {"type": "object"}
    if origin is Literal:
        return _schema_of_literals(arguments, where)
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return _schema(rest[0], where) | {"nullable": True}
        return {"anyOf": [_schema(each, where) for each in rest]}
    raise ConfigError(
        f"The type {kind!r} of {where} is none that JSON has; expected str, int, float, bool, list, dict, "
        "Literal, or one of these or None."
    )


def _schema_of_literals(values: tuple[Any, ...], where: str) -> dict[str, Any]:
    """JSON schema of `Literal[values]`, with a type only if all values share it. Raises: ConfigError."""
    if strange := [value for value in values if value is not None and type(value) not in PLAIN]:
        raise ConfigError(
            f"The value {strange[0]!r} in a Literal of {where} is none that JSON has; expected texts, whole "
            "numbers, True, False or None."
        )
    names = {"null" if value is None else PLAIN[type(value)] for value in values}
    return ({"type": names.pop()} if len(names) == 1 else {}) | {"enum": list(values)}


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is float:
        is_finite = isinstance(value, float) and math.isfinite(value)  # 1e999 is read as infinity
        return is_finite or (isinstance(value, int) and not isinstance(value, bool))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in PLAIN:
        return isinstance(value, kind)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin in (Union, types.UnionType):
        return any(value is None if each is type(None) else _fits(value, each) for each in arguments)
    if origin is dict:
        return isinstance(value, dict)
    if origin is tuple and arguments and Ellipsis not in arguments:
        is_as_long = isinstance(value, list) and len(value) == len(arguments)
        return is_as_long and all(map(_fits, value, arguments))
    return isinstance(value, list) and all(_fits(each, arguments[0]) for each in value if arguments)


def _described(documentation: str) -> dict[str, str]:
    """The description of each parameter in the section `Args:`."""
    _, found, section = documentation.partition("Args:\n")
    described: dict[str, str] = {}
    for line in section.splitlines() if found else ():
        if line.strip() and not line.startswith(" "):
            break
        if match := ARGUMENT.match(line):
            described[match[1]] = match[2].strip()
    return described
