"""A trace as TrackEvents, Perfetto's own format: protobuf, a tenth of the size of the JSON.

Invariants: slices of one track do not overlap: a worker has as many tracks of a kind as it had such slices at
once; every slice that begins ends; a repeated name is written once; packets are deflated in blocks of AT_ONCE
bytes, as the format allows, so that 100,000 responses take 3 MB. No package is needed: the few fields that
are used are below, with their numbers from perfetto's trace_packet.proto and track_event.proto."""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, BinaryIO

Entry = dict[str, Any]
SEQUENCE = 1  # the file has one writer
CLEARED, NEEDED = 1, 2  # flags: interned names are cleared; are needed
BEGIN, END, COUNTER = 1, 2, 4
RUN = 0  # pid of entries of the whole run
AT_ONCE = 256 << 10  # bytes of packets that are deflated together
SHORT = 24  # characters; shorter texts are interned, as they are likely to repeat
KINDS = {"route": "generating", "score": "scoring", "ahead": "training ahead"}  # shown for a category


def write_track_events(entries: Iterable[Entry], file: BinaryIO) -> int:
    """Write the entries of `controller.history.trace.trace`; returns the number of slices."""
    writer = _Writer(file)
    for entry in entries:
        writer.take(entry)
    writer.flush()
    return writer.slices


@dataclass(slots=True)
class _Tracks:
    """Tracks of one worker and kind, and when each is free again."""

    uuids: list[int] = field(default_factory=list)
    free_us: list[float] = field(default_factory=list)


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self.slices = 0
        self._file, self._packets = file, bytearray()
        self._tracks: dict[tuple[int, str], _Tracks] = {}  # by pid and category
        self._counters: dict[str, int] = {}  # uuid
        self._names: dict[tuple[int, str], int] = {}  # interned: by field of InternedData, number
        self._open: dict[str, tuple[_Tracks, int]] = {}  # by id: its tracks, and which of them
        self._uuids = 1 << 16  # lower ones are for workers
        self._packet(_integer(13, CLEARED))

    def take(self, entry: Entry) -> None:
        """Write one entry."""
        match entry["ph"]:
            case "M":
                self._describe(_worker(entry["pid"]), entry["args"]["name"])
            case "b":
                self._open[entry["id"]] = self._begin(entry)
            case "e":
                tracks, place = self._open.pop(entry["id"])
                self._end(tracks, place, entry["ts"], entry.get("args", {}))
            case "X":
                tracks, place = self._begin(entry)
                self._end(tracks, place, entry["ts"] + entry["dur"], entry.get("args", {}))
            case "C":
                for name, value in entry["args"].items():
                    self._count(f"{entry['name']}/{name}" if name else entry["name"], entry["ts"], value)

    def _begin(self, entry: Entry) -> tuple[_Tracks, int]:
        pid, kind, begin_us = entry["pid"], entry["cat"], entry["ts"]
        tracks = self._tracks.setdefault((pid, kind), _Tracks())
        place = next((i for i, free_us in enumerate(tracks.free_us) if free_us <= begin_us), None)
        if place is None:
            place = len(tracks.uuids)
            self._uuids += 1
            tracks.uuids.append(self._uuids)
            tracks.free_us.append(inf)
            self._describe(self._uuids, f"{KINDS.get(kind, kind)} {place + 1}", parent=_worker(pid))
        tracks.free_us[place] = inf
        self.slices += 1
        known: list[bytes] = []
        event = _integer(9, BEGIN) + _integer(11, tracks.uuids[place])
        event += _integer(3, self._interned(1, kind, known)) + _text(23, entry["name"])
        begun, ended = entry.get("flows", ((), ()))
        event += b"".join(_fixed(47, _flow(*key)) for key in begun)
        event += b"".join(_fixed(48, _flow(*key)) for key in ended)
        self._event(begin_us, event, known)
        return tracks, place

    def _end(self, tracks: _Tracks, place: int, end_us: float, args: dict[str, Any]) -> None:
        tracks.free_us[place] = end_us
        known: list[bytes] = []
        event = _integer(9, END) + _integer(11, tracks.uuids[place])
        for name, value in args.items():
            event += _bytes(4, _integer(1, self._interned(3, name, known)) + self._value(value, known))
        self._event(end_us, event, known)

    def _value(self, value: object, known: list[bytes]) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int | float):
            text = str(value)
            return _integer(17, self._interned(29, text, known)) if len(text) <= SHORT else _text(6, text)
        if isinstance(value, float):
            return _double(5, value)
        return _integer(4, value)

    def _count(self, name: str, at_us: float, value: float) -> None:
        if name not in self._counters:
            self._uuids += 1
            self._counters[name] = self._uuids
            self._describe(self._uuids, name, is_counter=True)
        number = _double(44, value) if isinstance(value, float) else _integer(30, value)
        self._event(at_us, _integer(9, COUNTER) + _integer(11, self._counters[name]) + number, [])

    def _describe(self, uuid: int, name: str, *, parent: int | None = None, is_counter: bool = False) -> None:
        found = _integer(1, uuid) + _text(2, name)
        found += b"" if parent is None else _integer(5, parent)
        found += _bytes(8, b"") if is_counter else b""
        self._packet(_bytes(60, found))

    def _event(self, at_us: float, event: bytes, known: list[bytes]) -> None:
        names = _bytes(12, b"".join(known)) if known else b""
        self._packet(
            _integer(8, max(0, round(at_us * 1e3))) + _integer(13, NEEDED) + names + _bytes(11, event)
        )

    def _interned(self, kind: int, name: str, known: list[bytes]) -> int:
        """The number of a name; a new name is written with this packet."""
        key = (kind, name)
        number = self._names.get(key)
        if number is None:
            number = self._names[key] = len(self._names) + 1
            known.append(_bytes(kind, _integer(1, number) + _text(2, name)))
        return number

    def _packet(self, fields: bytes) -> None:
        self._packets += _bytes(1, _integer(10, SEQUENCE) + fields)
        if len(self._packets) > AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the collected packets, deflated, as one packet."""
        if self._packets:
            self._file.write(_bytes(1, _bytes(50, zlib.compress(self._packets))))
            self._packets.clear()


def _worker(pid: int) -> int:
    """The uuid of a worker's own track, the parent of the tracks of its slices."""
    return pid + 1


def _flow(*key: object) -> int:
    """The id of an arrow: never 0, and hardly ever equal to another's."""
    text = repr(key).encode()
    return (zlib.crc32(text) << 32 | zlib.crc32(text[::-1])) or 1


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _integer(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _fixed(field: int, number: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
