"""Resident memory of one process, as the kernel counts it."""

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes_of(process: int) -> int:
    """Resident bytes of a process, with shared pages; 0 if it has ended, or without /proc."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
