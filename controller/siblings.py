"""Refuses packages of others under our names, before any of their code runs.

Invariants: imported before all others of ours, so of the standard library alone; no module of a stranger is
run; a package that lies beside `controller` is ours.
"""

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def refuse_strangers(*names: str) -> None:
    """Return if an import of each name finds the package beside `controller`.

    Raises: ImportError, which names the package that would be found instead, or was imported before.
    """
    for name in names:
        place = _place_of(name)
        if place is not None and place != ROOT / name:
            raise ImportError(
                f"`{name}` is {place} here, and not StaleFlow's {ROOT / name}, which {ROOT / 'controller'} "
                f"needs: another folder comes first on sys.path. Rename your `{name}`, put it into a package "
                f"of yours (`mine.{name}`), or start the program in another folder; docs/setup.md says more.",
                name=name,
            )


def packages_to_install() -> str:
    """Which packages of workers are not here, and how to install them; "" if none, or nobody can say."""
    with suppress(ImportError):  # an embedding program may have an `install` of its own
        refuse_strangers("install")
        import install

        if lacking := install.missing(("workers",)):
            return f"{sys.executable} lacks {', '.join(lacking)}: {install.by_hand(('workers',))}"
    return ""


def _place_of(name: str) -> Path | None:
    """The folder or file that an import of this name finds; None if there is none."""
    there = sys.modules.get(name)
    spec = find_spec(name) if there is None else getattr(there, "__spec__", None)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    place = folders[0] if folders else spec.origin
    return Path(place).resolve() if place else None


refuse_strangers("protocol", "strategies")
