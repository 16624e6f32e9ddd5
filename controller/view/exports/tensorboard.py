"""Event files as TensorBoard reads them, written without it.

Invariants: a file holds each step once: it is written anew from metrics.jsonl when a tracker begins, beside
the old one and then in its place; what a kill cut off is only the end of the last record.
Source: TFRecord framing (length, masked CRC-32C, data, masked CRC-32C), and the messages Event and Summary of
tensorboard/compat/proto, of which five fields are used.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from math import copysign, inf
from pathlib import Path
from typing import IO, Any

from controller.view.exports.jsonl_tail import numbers

NAME = "events.out.tfevents.0.staleflow"
TABLE = []
for byte in range(256):
    value = byte
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    TABLE.append(value)


class TensorBoard:
    """`RUN/tensorboard/`, for `tensorboard --logdir RUN`."""

    name = "tensorboard"

    def __init__(self, run: Path, config: Mapping[str, Any], run_id: str) -> None:
        del config, run_id
        self._folder = run / "tensorboard"
        self._file: IO[bytes] | None = None

    def begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the file anew with all lines that there are. Raises: OSError."""
        self.close()
        self._folder.mkdir(exist_ok=True)
        aside = self._folder / f".{NAME}.new"
        aside.unlink(missing_ok=True)  # of a process that was killed, or a link that came with the run
        with open(aside, "xb") as file:
            file.write(record(_double(1, 0.0) + _text(3, b"brain.Event:2")))
            file.writelines(map(_event, lines))
        aside.replace(self._folder / NAME)
        self._file = open(self._folder / NAME, "ab")  # noqa: SIM115  # until close

    def step(self, line: Mapping[str, Any]) -> None:
        """One line more. Raises: OSError."""
        assert self._file is not None
        self._file.write(_event(line))
        self._file.flush()

    def close(self) -> None:
        """Be whole on the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def record(data: bytes) -> bytes:
    """Framed as TFRecord has it."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _event(line: Mapping[str, Any]) -> bytes:
    values = b"".join(
        _text(1, _text(1, key.encode()) + b"\x15" + _single(value))
        for key, value in numbers(dict(line)).items()
        if key != "step"
    )
    wall_s = float(line.get("time_s", 0.0))
    return record(_double(1, wall_s) + b"\x10" + _varint(int(line["step"])) + _text(5, values))


def _single(value: float) -> bytes:
    """As float32; infinite where it is too large for one, as by any conversion but struct's."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", copysign(inf, value))


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _text(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
