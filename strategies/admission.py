"""How many groups may be in the system: the cap, apart from the deadline.

The ledger alone keeps the bound; admission chooses how much of its room to use. Source: SIMULATION.md section
5.
"""

from typing import Literal


def in_flight_groups(batches: float | Literal["auto"], *, max_staleness: int, batch_groups: int) -> int:
    """Groups that may be started and not yet consumed; `auto` takes all the room that the bound leaves."""
    return round((max_staleness + 1 if batches == "auto" else batches) * batch_groups)
