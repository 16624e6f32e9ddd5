"""Limits the number of pages that are open at once: further ones get a message.

Invariants: a page is one viewer, however often it asks, until it has not asked for HEARD_S, as when it is
closed or hidden; open pages keep their places. This is a limit against accidents and no lock: a program with
the token may ask without naming a page.
"""

import re
from collections.abc import Mapping

from controller.view.door.access import Denied

PAGE = "x-staleflow-page"  # a header with a name that the page has drawn for itself
NAME = re.compile(r"[\w-]{1,40}", re.ASCII)
MOST = 20
HEARD_S = 12.0  # a page that shows a run which stands asks every eight seconds


class Viewers:
    """The pages that look at one view."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._heard: dict[str, float] = {}  # by name of the page, when it asked last

    def objection(self, headers: Mapping[str, str], now: float) -> Denied | None:
        """Why a page gets no answer; None if it does. `now`: seconds of any clock."""
        name = headers.get(PAGE)
        if name is None:
            return None
        if not NAME.fullmatch(name):
            return Denied(400, f"{PAGE} is {name[:40]!r}; expected a short name of letters and digits.")
        self._heard = {page: at for page, at in self._heard.items() if now - at < HEARD_S}
        if name not in self._heard and len(self._heard) >= self._most:
            return Denied(
                429,
                f"{self._most} pages look at this view already, and it serves no more. Close one and wait "
                f"{HEARD_S:.0f} s, or open a view of your own: launch.py view RUN.",
            )
        self._heard[name] = now
        return None
