"""Finds the name by which other processes can import an object of this program.

Invariant: nothing is imported or changed; an object without such a name is refused with the reason.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from protocol.errors import ConfigError
from protocol.plain_text import one_line

Namespace = dict[str, Any]  # what a module or script holds at its top level
PROGRAMS = ("__main__", "__mp_main__")  # the latter in a process that multiprocessing has spawned


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
            f"The {what} is {name}, which workers, being other processes, cannot import: "
            f"{_why_nameless(reward, example)}"
        )
    namespace, file, name = found
    path = Path(file).resolve()
    if (module := _module_of(namespace, path)) is not None:
        depth = module.count(".") + (path.stem == "__init__")
        return f"{module}:{name}", str(path.parents[depth])
    if path.suffix != ".py":
        raise ConfigError(
            f"The {what} is `{name}` of {path}, which workers, being other processes, cannot import: the "
            f"name of that script does not end in `.py`. Rename it, or put {example} in a module beside it."
        )
    return f"{path}:{name}", str(path.parent)


def _named(reward: Callable[..., Any]) -> tuple[Namespace, str, str] | None:
    """The top level that holds the callable, the file that it is of, and the callable's name there."""
    for namespace in _namespaces(reward):
        file = namespace.get("__file__")
        if not isinstance(file, str) or not os.path.isfile(file):  # as "<stdin>"
            continue
        for name, value in list(namespace.items()):
            if value is reward and name.isidentifier():
                return namespace, file, name
    return None


def _namespaces(reward: Callable[..., Any]) -> Iterator[Namespace]:
    """The top levels that may hold the callable, the likeliest first."""
    yield from map(_top_level, (inspect.getmodule(reward), sys.modules.get("__main__")))
    is_function = inspect.isroutine(reward) and not isinstance(reward, partial)  # as Python 3.14 has it
    if is_function:
        members: list[object] = [reward]
    else:
        members = list(vars(reward if inspect.isclass(reward) else type(reward)).values())
    # the program of `python -m cProfile`, or a file that was loaded by hand, is no module of sys.modules
    yield from (getattr(member, "__globals__", {}) for member in members)
    if not is_function:  # an object may have been made elsewhere than its class
        yield from map(_top_level, list(sys.modules.values()))


def _top_level(module: ModuleType | None) -> Namespace:
    """What a module holds; nothing for what is none, as sys.modules may have."""
    return vars(module) if isinstance(module, ModuleType) else {}


def _module_of(namespace: Namespace, path: Path) -> str | None:
    """The name by which a worker imports the module of this top level; None if only its file names it."""
    name = namespace.get("__name__")
    if name in PROGRAMS or _top_level(sys.modules.get(str(name))) is not namespace:
        return None
    has_own_name = path.suffix != ".py" or path.stem in ("__init__", str(name).rpartition(".")[2])
    return str(name) if has_own_name else None  # another name than the file's: it was loaded by hand


def _why_nameless(reward: Callable[..., Any], example: str) -> str:
    """Why a callable has no name that workers can import, and what to do."""
    module, name = getattr(reward, "__module__", None), getattr(reward, "__qualname__", "")
    now = _top_level(sys.modules.get(str(module)))
    if module not in PROGRAMS and now.get(name, reward) is not reward:
        return (
            f"`{name}` of the module {module} is another object, as after a reload of the module. "
            f"Expected the one that is there now: `from {module} import {name}` again, and pass that."
        )
    why = (
        "it has no name at the top level of a module or script that is a file on the disk. "
        f"Put {example} there, and pass that."
    )
    if "get_ipython" in _top_level(sys.modules.get("__main__")):
        why += " In a notebook, a cell that begins with `%%writefile rewards.py` makes such a file to import."
    return why
