"""Finds the name by which other processes can import an object of this program.

Invariant: nothing is imported or changed; an object without such a name is refused with the reason.
"""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from protocol.errors import ConfigError
from protocol.plain_text import one_line


def import_path(reward: Callable[..., Any], *, what: str = "reward") -> tuple[str, str]:
    """The import path by which a worker finds a callable, and the folder to put on its sys.path.

    Raises: ConfigError if it is not callable, or there is no such path: for a closure, a method, a class that
    is no agent, an object made inside a function or typed at a prompt, or a script whose name does not end in
    `.py`.
    """
    kind = type(reward).__qualname__
    example = "`def score(...)` or `judge = Judge()`" if what == "reward" else "`async def episode(...)`"
    if not callable(reward):
        text = one_line(repr(reward))
        remedy = f" An import path is given as {what}.function." if isinstance(reward, str) else ""
        raise ConfigError(
            f"The {what} is {text:.200}; expected a function or an object that can be called.{remedy}"
        )
    if inspect.isclass(reward) and what != "agent":
        raise ConfigError(
            f"The reward is the class {reward.__qualname__}; expected an object of it, or a function."
        )
    found = _named(reward)
    if found is None:
        name = getattr(reward, "__qualname__", f"an object of {kind}")
        raise ConfigError(
            f"The {what} is {name}, which workers, being other processes, cannot import: it has no name at "
            "the top level of a module or script that is a file on the disk. "
            f"Put {example} there, and pass that."
        )
    module, file, name = found
    path = Path(file).resolve()
    if module.__name__ != "__main__":
        depth = module.__name__.count(".") + (path.stem == "__init__")
        return f"{module.__name__}:{name}", str(path.parents[depth])
    if path.suffix != ".py":
        raise ConfigError(
            f"The {what} is `{name}` of {path}, which workers, being other processes, cannot import: the "
            f"name of that script does not end in `.py`. Rename it, or put {example} in a module beside it."
        )
    return f"{path}:{name}", str(path.parent)


def _named(reward: Callable[..., Any]) -> tuple[ModuleType, str, str] | None:
    """The module with a file that holds the callable at its top level, that file, and the callable's name."""
    modules = [inspect.getmodule(reward), sys.modules.get("__main__")]
    if not inspect.isroutine(reward):  # an object may have been made elsewhere than its class
        modules += list(sys.modules.values())
    for module in modules:
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or file is None or not os.path.isfile(file):  # as "<stdin>"
            continue
        for name, value in list(vars(module).items()):
            if value is reward and name.isidentifier():
                return module, file, name
    return None
