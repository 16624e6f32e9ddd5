"""This process's use of its machine: resident memory with all descendants, and memory of its device.

Invariants: nothing is loaded for it, and no device context is made: without torch, or before the worker has
used its device, there is none; only descendants are read, so it costs the same on a busy machine.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

from protocol.machine.visible_gpus import visible_gpus
from protocol.messages import MachineUse
from protocol.plain_text import plain_line
from workers.link.process_memory import resident_bytes_of

MB = 1 << 20
NO_DEVICE = "cpu"
MAX_NAME_CHARS = 200


def machine_use() -> MachineUse:
    """The current use. Without /proc the memory is 0."""
    name, free, total = _device()
    resident = sum(map(resident_bytes_of, _with_descendants(os.getpid())))
    return MachineUse(resident // MB, name, (total - free) // MB, total // MB)


def _device() -> tuple[str, int, int]:
    """Number and name, free bytes and total bytes of the device that torch uses in this process.

    The number is the driver's, so that workers that see one GPU each are told apart.
    """
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):  # a thread is importing it
        return NO_DEVICE, 0, 0
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return NO_DEVICE, 0, 0
    free, total = torch.cuda.mem_get_info()
    visible, index = visible_gpus(os.environ), torch.cuda.current_device()
    place = visible[index] if index < len(visible) else str(index)
    return plain_line(f"GPU {place}: {torch.cuda.get_device_name()}")[:MAX_NAME_CHARS], free, total


def _with_descendants(process: int) -> list[int]:
    """The process and its descendants; the process alone if the kernel does not list children of threads."""
    found = [process]
    for one in found:
        with suppress(OSError):  # it has ended meanwhile
            for thread in os.listdir(f"/proc/{one}/task"):
                found += map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split())
    return found
