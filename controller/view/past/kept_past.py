"""Keeps a view's findings about a run in its directory, so that the next view does not repeat the work.

Two files: the pass over the history, and the core where a view had read to the end, which is small and opens
the first page. Invariants: a file is derived and may be deleted at any time; it counts for the very release
and history that it was made of alone; it is whole or not there: it has a digest, and gets its place in one
move; nothing in it is a program.
"""

import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from controller.durability.image.classes import InParts
from controller.durability.recording import Recording
from controller.durability.release import release
from controller.view.past.keyframes import PlainKeyframes
from protocol.files import for_owner_only, plain_only

NAME, NEWEST = "view.past", "view.newest"
LEAST_EVENTS = 20_000  # a pass over fewer takes seconds, and is made again
LEAST_READ = 1_000  # events: a quarter of a second of reading; fewer are read again
DIGEST_BYTES = 16


class KeptPast(NamedTuple):
    """How far a pass had come, and what it knew."""

    number: int  # the last event that it had stepped through
    image: InParts  # of the core there
    timeline: dict[str, Any]  # `Timeline.as_plain`
    keyframes: PlainKeyframes


def keep_past(run: Path, recording: Recording, past: KeptPast) -> bool:
    """Write it beside the run; whether that was possible: a copy may lie where nobody writes."""
    return _write(run, NAME, (_history(recording, past.number), *past))


def keep_newest(run: Path, recording: Recording, number: int, image: InParts) -> bool:
    """Write the core after event `number` beside the run; whether that was possible."""
    return _write(run, NEWEST, (_history(recording, number), number, image))


def _write(run: Path, name: str, what: tuple[object, ...]) -> bool:
    body = msgpack.packb(what)
    aside, place = run / f".{name}.{os.getpid()}", run / name
    try:
        aside.unlink(missing_ok=True)  # of a process that was killed, or a link that came with the run
        with os.fdopen(for_owner_only(str(aside), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(_digest(body))
            file.write(body)
        aside.replace(place)
    except OSError:
        with suppress(OSError):  # of what is not there either, a disk that is only read says that it is so
            aside.unlink()
        return False
    return True


def find_past(run: Path, recording: Recording) -> KeptPast | None:
    """What an earlier view kept of this history; None if there is none that this release may use."""
    match _read(run, NAME, recording):
        case [number, image, dict(timeline), [int(spacing), dict(parts), dict(images)]]:
            return KeptPast(number, image, timeline, (spacing, parts, images))
        case _:
            return None


def find_newest(run: Path, recording: Recording) -> tuple[int, InParts] | None:
    """An event and the core after it, if an earlier view kept one of this history and release."""
    found = _read(run, NEWEST, recording)
    return None if found is None else (found[0], found[1])


def _read(run: Path, name: str, recording: Recording) -> list[Any] | None:
    """Number, image and what follows them; None if it is not whole, or of another history."""
    try:
        with open(run / name, "rb", opener=plain_only) as file:
            data = file.read()
    except OSError:
        return None
    body = memoryview(data)[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != _digest(body):
        return None
    try:
        kept = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError):
        return None
    match kept:
        case [str(history), int(number), [bytes(skeleton), list(parts)], *more]:
            is_there = recording.pruned <= number <= recording.last
            is_of_it = is_there and history == _history(recording, number)
            return [number, InParts(skeleton, tuple(parts)), *more] if is_of_it else None
        case _:  # another release had it otherwise
            return None


def _history(recording: Recording, number: int) -> str:
    """What tells this history up to an event from every other, and from another release's of the same run."""
    skipped = [one for one in recording.skipped if one <= number]
    return json.dumps([release(), recording.facts["config"], recording.mark(number), skipped])


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()
