"""Reads response lengths from the journal of a run.

Invariant: a response counts when it has ended by `stop` or `length`, with all tokens that its attempts
reported in order; each turn of an agent counts as one; responses of removed groups count too, since the
engine had to generate them."""

from pathlib import Path

from controller.core.events import Received
from controller.durability.store import Store
from protocol.errors import ConfigError
from protocol.files import is_dir, is_file
from protocol.messages import Delta, Generated


def read_lengths(path: str) -> list[int]:
    """Lengths in tokens of the finished responses of a run, in the order in which they ended.

    The run is given as its directory or its run.db. Raises: ConfigError if there is no such run; RunError if
    its journal is broken.
    """
    file = Path(path) / "run.db" if is_dir(Path(path)) else Path(path)
    if not path or not is_file(file):
        raise ConfigError(
            f"simulation.workload.trace is {path!r}, where there is no run.db. Give the directory of a "
            "finished run, or its run.db."
        )
    store = Store(file)
    lengths: list[int] = []
    counted: dict[tuple[int, int], int] = {}  # tokens of turns before
    tokens: dict[tuple[int, int], dict[int, int]] = {}  # (group, member) -> attempt -> tokens
    try:
        for _, event in store.events():
            if isinstance(event, Received) and isinstance(event.message, Generated):
                for delta in event.message.deltas:
                    _take(delta, tokens, counted, lengths)
    finally:
        store.close()
    return lengths


def _take(
    delta: Delta,
    tokens: dict[tuple[int, int], dict[int, int]],
    counted: dict[tuple[int, int], int],
    lengths: list[int],
) -> None:
    place = delta.group, delta.member
    attempts = tokens.setdefault(place, {})
    if attempts and delta.attempt < max(attempts):
        return  # a late report of an attempt that was given up
    if attempts.get(delta.attempt, 0) != delta.start:
        return  # a repeated report
    attempts[delta.attempt] = delta.start + delta.count
    if delta.ending in ("stop", "length"):
        total = sum(attempts.values())
        lengths.append(total - counted.get(place, 0))
        counted[place] = total
