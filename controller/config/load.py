"""Reads a configuration from YAML and `key.path=value` overrides.

Invariants: all problems are reported in one ConfigError; a value is never guessed: values that the strict
models refuse are refused here, except an int for a float and a list for a tuple, which YAML cannot tell
apart. Relative paths of files that exist become absolute.
"""

import contextlib
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError

from controller.config import variables
from controller.config.known_names import advice_on, keys_at, leaves, nearest, our_key, translated
from controller.config.models import Config, Section
from controller.config.places import file_meant, from_checkpoint, with_absolute_paths
from controller.config.pluggable import BUILT_IN, FILES
from controller.config.rules import cross_field_problems
from controller.config.yaml_file import MAX_CHARACTERS, quoted_for_a_shell, read_words, read_yaml
from protocol.errors import ConfigError
from protocol.files import is_file
from protocol.rewards.kinds import KINDS
from strategies.cost_model import COST_MODELS, load_coefficients

Tree = dict[str, Any]
IN_WORDS = {
    "an object": "a mapping, such as {name: value}",
    "a valid array": "a list, such as [a, b]",
    "a valid tuple": "a list, such as [a, b]",
    "a valid string": 'a text (an empty one is "")',
}
"""Pydantic's words for the type of a field -> words for a user of YAML."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in the file at `path`, with overrides applied in order.

    Raises: ConfigError that names every problem, each with its dotted path, its line, and accepted values.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"The configuration is {path!r:.80}; expected the path of a YAML file, then overrides. Of a "
            "mapping of your own, `Config.model_validate(mapping)` makes a configuration."
        )
    given = [overrides] if isinstance(overrides, str) else [*overrides]
    if isinstance(overrides, str | Mapping) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"The overrides are {overrides!r:.80}; expected a list such as ['run.steps=20'].")
    file = Path(path)
    tree, lines, problems = _read_tree(file)
    for override in given:
        problems += _apply_override(tree, lines, override)
    written = _expand_variables(tree, lines, problems)
    shown = {_dotted(path): text for path, text in written.items()}
    config = _resolved(_validated(tree, lines, problems, str(file), shown), file.absolute().parent)
    return config.with_spellings({path: text for path, text in written.items() if not _names_a_place(path)})


def _expand_variables(tree: Tree, lines: dict[str, str], problems: list[str]) -> dict[variables.Path, str]:
    """Expand environment variables in the tree; returns the original text by path."""
    written, refused = dict(variables.places(tree)), list[variables.Path]()
    for path, text in written.items():
        try:
            value: Any = variables.expand(text, os.environ)
        except variables.NotExpanded as problem:
            problems.append(f"{_dotted(path)}{_line(lines, path)}: {problem}")
            refused.append(path)
            continue
        if not variables.is_text(Config, path):
            with contextlib.suppress(yaml.YAMLError):  # then the field refuses it as a text
                value, _ = read_yaml(value)
        variables.put(tree, path, value)
    for path in refused:  # behind all others, as a whole list goes with its entry
        _drop(tree, _dotted(path))
    return written


def _names_a_place(path: variables.Path) -> bool:
    """Whether a value names code or a file: these are kept expanded, so that a run's history names them.

    The core itself reads `staleness.cost_model`.
    """
    places = (*FILES, *BUILT_IN, "controller.keys", "staleness.cost_model")
    return _dotted(path) in places or path[:2] in (("evaluation", "data"), ("data", "sources"))


def _dotted(path: variables.Path) -> str:
    return ".".join(map(str, path))


def _line(lines: dict[str, str], path: variables.Path) -> str:
    """Text with the line of a value, or of the nearest section around it; "" if unknown."""
    return next((lines[d] for n in range(len(path), 0, -1) if (d := _dotted(path[:n])) in lines), "")


def _resolved(config: Config, folder: Path) -> Config:
    """The configuration with everything resolved that it names outside the file.

    Paths are made absolute, the checkpoint of `run.resume` becomes the model, and the coefficients of
    `staleness.cost_model` take the place of their file, so that a run's history does not depend on a file
    that may change.
    """
    config = from_checkpoint(with_absolute_paths(config, folder))
    name = config.staleness.cost_model
    if name in COST_MODELS or name.lstrip().startswith("{"):
        return config
    place = os.path.expanduser(name)
    places = [one / place for one in (Path.cwd(), folder)]  # as every other file that a key names
    file = next((one for one in places if os.path.isfile(one)), places[0])
    try:
        text = json.dumps(load_coefficients(file.read_text())._asdict())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"staleness.cost_model is {name!r}, and {file} cannot be read: {error}. Expected "
            f"{' or '.join(COST_MODELS)}, or a file that `launch.py profile RUN -o FILE.json` wrote."
        ) from None
    return config.model_copy(update={"staleness": config.staleness.model_copy(update={"cost_model": text})})


def change_config(config: Config, overrides: Sequence[str], *, without: Sequence[str] = ()) -> Config:
    """The configuration with overrides applied, and the keys `without` back at their defaults before.

    Raises: ConfigError as `load_config` does.
    """
    tree: Tree = json.loads(config.model_dump_json())
    for dotted in without:
        section, _, key = dotted.partition(".")
        del tree[section][key]
    problems = [problem for override in overrides for problem in _apply_override(tree, {}, override)]
    return _resolved(_validated(tree, {}, problems, "with its changes"), Path.cwd())


def refuse_problems(tree: Tree, name: str) -> None:
    """Raises: ConfigError that names every problem of a tree of sections, as `load_config` does."""
    _validated(tree, {}, [], name)


def _validated(
    tree: Tree,
    lines: dict[str, str],
    problems: list[str],
    name: str,
    written: Mapping[str, str] | None = None,
) -> Config:
    read_words(Config, tree)
    config, bad_fields = None, set[str]()
    for _ in range(2):  # again without refused fields, to check cross-field rules too
        try:
            config = Config.model_validate_json(json.dumps(tree))
            break
        except ValidationError as error:
            for field, problem in _in_words(error, tree, written or {}):
                problems.append(f"{field}{_line(lines, tuple(field.split('.')))}: {problem}")
                bad_fields |= {field, _drop(tree, field)}
    if config is not None:
        for fields, problem in cross_field_problems(config):
            if not bad_fields.intersection(fields):
                problems.append(f"{fields[0]}{_line(lines, tuple(fields[0].split('.')))}: {problem}")
    if problems or config is None:
        raise ConfigError(_summary(name, problems))
    return config


def _summary(name: str, problems: list[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"The configuration {name} has {count}:\n" + "\n".join(f"  {problem}" for problem in problems)


def _read_tree(file: Path) -> tuple[Tree, dict[str, str], list[str]]:
    """The file as nested dictionaries, " (line N)" per dotted path, and problems of form."""
    try:
        with file.open(encoding="utf-8") as stream:
            tree, node = read_yaml(stream.read(MAX_CHARACTERS + 1))
    except FileNotFoundError:
        raise ConfigError(
            f"There is no file {file} (working directory {Path.cwd()}). {file_meant(file)}Give the path of a "
            "YAML configuration, for example examples/quickstart.yaml."
        ) from None
    except IsADirectoryError:
        inside = file / "config.yaml"
        meant = f" Its configuration is {inside}." if is_file(inside) else ""
        raise ConfigError(f"{file} is a folder; expected the path of a YAML configuration.{meant}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = " ".join(str(error).split()).replace('in "<unicode string>", ', "")
        tabs = " Indent with spaces, not with tabs." if "character '\\t'" in what else ""
        raise ConfigError(
            f"The configuration {file} cannot be read: {what}. Expected YAML in UTF-8.{tabs}"
        ) from None
    if tree is None:
        return {}, {}, []
    if not isinstance(tree, dict) or node is None:
        raise ConfigError(
            f"The configuration {file} is a {type(tree).__name__}, not a mapping of sections. Expected for "
            "example `run:` with `steps: 100` below it."
        )
    lines: dict[str, str] = {}
    problems = []
    for dotted, line in _keys(node, ""):
        if dotted in lines:
            problems.append(f"{dotted} (line {line}): is given twice, first{lines[dotted]}. Keep one.")
        lines.setdefault(dotted, f" (line {line})")
    tree = {key: {} if value is None else value for key, value in _with_texts(tree).items()}
    _fill(tree, Config)
    return tree, lines, problems


def _fill(tree: Tree, model: type[BaseModel]) -> None:
    """Take a section with nothing below it, `run:` or `sampling:` with comments only, for an empty one."""
    for name, field in model.model_fields.items():
        if name in tree and isinstance(section := field.annotation, type) and issubclass(section, Section):
            if tree[name] is None:
                tree[name] = {}
            elif isinstance(tree[name], dict):
                _fill(tree[name], section)


def _with_texts(value: Any) -> Any:
    """The same with texts for keys, at any depth: YAML has numbers, dates and words such as `on`, too."""
    if isinstance(value, dict):
        return {str(key): _with_texts(one) for key, one in cast("dict[Any, Any]", value).items()}
    return [_with_texts(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _keys(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue  # its keys have lines of their own, at the anchor
            dotted = f"{prefix}{key.value}"
            yield dotted, key.start_mark.line + 1
            yield from _keys(value, f"{dotted}.")
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{prefix}{number}", value.start_mark.line + 1
            yield from _keys(value, f"{prefix}{number}.")


def _apply_override(tree: Tree, lines: dict[str, str], override: str) -> list[str]:
    dotted, separator, text = override.partition("=")
    if not separator or not dotted:
        return [f"{override!r} on the command line: expected key.path=value, for example run.steps=20."]
    quoted = quoted_for_a_shell(dotted, text) if _is_text_key(dotted) else ""
    try:
        value, node = read_yaml(text)
    except yaml.YAMLError as error:
        what = f"its value is not YAML ({' '.join(str(error).split())})."
        return [f"{override!r} on the command line: {quoted or what}"]
    is_plain = isinstance(value, str) and not getattr(node, "style", None)
    if quoted and (isinstance(value, dict | list) or (is_plain and value != text.strip())):  # ` #`: a comment
        return [f"{override!r} on the command line: {quoted}"]
    if dotted[0] in "+~":
        plain = override.lstrip("+~")
        return [f"{override!r} on the command line: keys are known here, so none is added; write {plain}."]
    try:
        _put(tree, dotted.split("."), value)
    except LookupError as problem:
        return [f"{override!r} on the command line: {problem.args[0]}"]
    for inside in [one for one in lines if one.startswith(f"{dotted}.")]:
        del lines[inside]  # of values that the override replaces
    lines[dotted] = " (command line)"
    section = dotted.rpartition(".")[0]
    while section:  # one that the file lacks
        lines.setdefault(section, lines[dotted])
        section = section.rpartition(".")[0]
    return []


def _is_text_key(dotted: str) -> bool:
    first, names = dotted.split(".")[0], keys_at(Config, dotted.rpartition(".")[0])
    is_key = dotted.rpartition(".")[2] in names if names else first in Config.model_fields
    return is_key and variables.is_text(Config, tuple(dotted.split(".")))


def _put(tree: Tree, names: Sequence[str], value: Any) -> None:
    """Raises: LookupError, in words, if there is no such place."""
    place: Any = tree
    for depth, name in enumerate(names):
        is_last = depth == len(names) - 1
        if isinstance(place, list):
            number = {str(n): n for n in range(len(place))}.get(name)
            if number is None:
                raise LookupError(
                    f"{'.'.join(names[:depth])} is a list of {len(place)} in the file; expected the number "
                    f"of one of them, counted from 0, not {name!r:.40}. To add one, write the list there."
                )
            if is_last:
                place[number] = value
            place = place[number]
        elif not isinstance(place, dict):
            raise LookupError(f"{names[depth - 1]} is a value in the file, not a section.")
        elif is_last:
            place[name] = value
        else:
            if place.get(name) is None:  # `lora:` may have nothing below it
                place[name] = {}
            place = place[name]


def _in_words(error: ValidationError, tree: Tree, written: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every refused field, as (dotted path, problem).

    The branches of a union become one sentence. Expanded variables are shown as they were written.
    """
    messages: dict[str, list[str]] = {}
    for entry in error.errors(include_url=False):
        field, value = _field_of(entry["loc"], tree)
        value = written.get(field, value)
        kind = _reward_kind(entry["loc"])
        if entry["type"] == "extra_forbidden":
            messages[field] = [_unknown_key(field, value, KINDS[kind].options if kind else None)]
        elif entry["type"] == "missing" and kind:
            messages[f"{field}.{entry['loc'][-1]}"] = [f"is missing; the reward `{kind}` needs it."]
        else:
            message = entry["msg"].removeprefix("Input should be ").removeprefix("Value error, expected ")
            told = f"{value!r} is refused" if value is not None else "nothing is given for it"
            messages.setdefault(field, [f"{told}; expected"]).append(IN_WORDS.get(message, message))
    return [
        (field, texts[0] if len(texts) == 1 else f"{texts[0]} {' or '.join(texts[1:])}.")
        for field, texts in messages.items()
    ]


def _field_of(location: tuple[int | str, ...], tree: Tree) -> tuple[str, Any]:
    """The part of a pydantic location that exists in the file, and its value.

    The rest of the location names a branch of a union.
    """
    value: Any = tree
    names: list[str] = []
    for place, part in enumerate(location):
        if place == 3 and _reward_kind(location):
            continue  # names the branch of the union, which is no key
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            break
        names.append(str(part))
    return ".".join(names), value


def _reward_kind(location: tuple[int | str, ...]) -> str:
    """The kind of the reward at a location; "" if the location is in no reward."""
    return str(location[3]) if location[:2] == ("reward", "rewards") and len(location) > 3 else ""


def _drop(tree: Tree, field: str) -> str:
    """Take a field out of the tree, or the whole list around it; returns the path of what was taken out."""
    *sections, key = field.split(".")
    place: Any = tree
    for depth, section in enumerate(sections):
        if isinstance(place, list):  # the field is in an entry of this list
            return _drop(tree, ".".join(sections[:depth]))
        if not isinstance(place, dict) or section not in place:
            return field
        place = place[section]
    if isinstance(place, dict):
        place.pop(key, None)
    elif sections:  # the field is an entry of a list
        return _drop(tree, ".".join(sections))
    return field


def valid_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Dotted paths of all sections and fields, in the order of the models."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from valid_keys(field.annotation, f"{prefix}{name}.")


def _unknown_key(field: str, value: Any, options: type[BaseModel] | None = None) -> str:
    """What to do about an unknown key; `options`: its model, if the place does not tell (a reward's kind)."""
    section, _, name = field.rpartition(".")
    known = list(valid_keys()) if options is None else list(valid_keys(options, f"{section}."))
    if isinstance(value, dict) and (elsewhere := _translated(field, value, known)):
        return f"there is no such section. {elsewhere}"
    if (said := advice_on(field)) is not None:
        return f"there is no such key. {said}"
    siblings = keys_at(Config, section) if options is None else {key.rpartition(".")[2]: key for key in known}
    if meant := nearest(name, list(siblings.values()), known):
        return f"there is no such key. Did you mean {' or '.join(f'`{key}`' for key in meant)}?"
    return f"there is no such key. Keys here: {', '.join(siblings) or ', '.join(Config.model_fields)}."


def _translated(section: str, value: Any, known: Sequence[str]) -> str:
    """Our keys for the keys in another system's section; "" if none is known."""
    top = [key for key in known if "." not in key]
    if "." not in section and difflib.get_close_matches(section, top, n=1):
        return ""  # a typing error
    by_name = {key.rpartition(".")[2]: key for key in reversed(known)}  # the first of equal names counts
    paths = list(leaves(value, section))
    return translated({path: our_key(path) or by_name.get(path.rpartition(".")[2]) for path in paths})
