"""Arguments that several commands share, and messages for command lines that are not understood.

Invariant: pure, except for one check whether a file exists; a word is never guessed: an unknown one is
refused with a suggestion."""

import difflib
import errno
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from protocol.errors import ConfigError
from protocol.files import exists

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="The configuration.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="key.path=value", help="Override single keys.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")]
RecordedRun = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its run.db.")]

NotUnderstood = next(
    kind
    for kind in typer.BadParameter.__mro__
    if issubclass(kind, Exception) and kind.__name__ == "ClickException"
)
"""The exception of typer for a wrong command line; its module depends on typer's release."""
PLAINER = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
    "Input should be greater": "expected a number greater",
    "Input should be less": "expected a number less",
    "Input should be": "expected",
    "Got unexpected extra argument(s)": "There are more arguments than it takes:",
}
"""Words of typer and pydantic -> plainer words."""

KNOWN_ELSEWHERE = {
    "train": "run", "start": "run", "launch": "run", "resume": "run", "validate": "check", "lint": "check",
    "evaluate": "eval", "kill": "stop", "cancel": "stop", "ps": "status",
}  # fmt: skip
"""Commands of other tools -> commands of launch.py."""

UNUSABLE = {
    errno.EACCES: "files that you may use, in folders that you may enter: ask the owner, or give others",
    errno.ENAMETOOLONG: "at most 4,095 bytes, and 255 in each name: give a shorter path",
    errno.ELOOP: "a path without links that lead back to themselves: mend them, or give another path",
}
"""What may be wrong with a path that somebody gave, wherever it is first looked at; and what was expected."""


def as_command(arguments: Sequence[str], commands: Collection[str]) -> list[str]:
    """The arguments with a command in front: `CONFIG.yaml ...` becomes `run CONFIG.yaml ...`.

    Raises: ConfigError if the first is neither a command nor a configuration, or a key has dashes.
    """
    words = list(arguments)
    if words and words[0] not in commands and not words[0].startswith("-"):
        _refuse_misspelt(words[0], commands)
        words.insert(0, "run")
    if words and words[0] in ("run", "check", "simulate", "eval"):
        _refuse_dashes(words[1:])
    return words


def _refuse_misspelt(word: str, commands: Collection[str]) -> None:
    if Path(word).suffix in (".yaml", ".yml") or exists(word) or "/" in word:
        return
    near = [KNOWN_ELSEWHERE[word]] if word in KNOWN_ELSEWHERE else None
    near = near or difflib.get_close_matches(word, sorted(commands), n=1)
    from controller.config.places import file_meant  # not at the start, which it would make slower

    known = f"The commands are {', '.join(sorted(commands))}."
    meant = f"Did you mean `{near[0]}`?" if near else file_meant(Path(word)).strip() or known
    raise ConfigError(f"There is no command `{word}`, nor a configuration of that name. {meant}")


def _refuse_dashes(words: Sequence[str]) -> None:
    for place, word in enumerate(words):
        name, separator, value = word.lstrip("-").partition("=")
        if word.startswith("--") and "." in name:
            after = words[place + 1] if place + 1 < len(words) else "VALUE"
            raise ConfigError(
                f"`{word}` is no option. A key of the configuration is set without dashes: "
                f"{name.replace('-', '_')}={value if separator else after}"
            )


def in_a_sentence(error: Any) -> str:
    """The message for a wrong command line: what is wrong, and which help to read.

    Empty for an empty command line, for which typer has printed the help.
    """
    text = str(error.format_message()).strip()
    if not text:
        return ""
    for words, plainer in PLAINER.items():
        text = text.replace(words, plainer)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "launch.py"
    return f"{text.removesuffix('.')}. `{command} --help` has what it takes."


def of_a_path(error: OSError) -> str:
    """What no command can do with a path that it was given; "" of any other error."""
    expected = UNUSABLE.get(error.errno or 0)
    if expected is None or error.filename is None:
        return ""
    return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}. Expected {expected}."
