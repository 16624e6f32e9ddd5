"""The GPUs of a machine that CUDA shows a process, as far as files and variables tell: no driver is asked."""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

DEVICES = Path("/dev")


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> tuple[str, ...]:
    """Names of the GPUs that CUDA shows a process with this environment, in the order of `cuda:N`.

    As CUDA reads CUDA_VISIBLE_DEVICES: an entry that is no GPU ends the list. `devices`: folder of the device
    files, whose number counts where the variable is not set.
    """
    if (listed := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(takewhile(lambda name: name not in ("", "-1"), map(str.strip, listed.split(","))))
    there = [file for file in devices.glob("nvidia[0-9]*") if file.name.removeprefix("nvidia").isdigit()]
    return tuple(map(str, range(len(there))))
