"""Tests what a worker on this machine could use: torch's devices, and the sandbox.

Invariant: each part is tested by using it, and an error is reported in its own words; the other parts are
tested all the same. `python -m workers.host.machine` prints the result as JSON: a driver that crashes or
hangs then takes only that process with it.
"""

import asyncio
import json
from typing import Any, TypedDict

from protocol.errors import ConfigError
from workers.sandbox.chosen_box import open_box

TRIED_ROWS = 256  # of the square matrices that a device multiplies: 256 KB each


class Device(TypedDict):
    """One accelerator."""

    name: str
    total_gb: float
    free_gb: float
    has_bf16: bool
    problem: str  # the error of a small product, or its wrong result; "" if it was right


class Equipment(TypedDict):
    """The equipment of this machine."""

    torch: str  # its version and what it was built for
    devices: list[Device]
    torch_problem: str
    sandbox_problem: str


def look() -> Equipment:
    """Test the devices of this process and the sandbox `bubblewrap`."""
    found = Equipment(torch="", devices=[], torch_problem="", sandbox_problem="")
    try:
        found |= _torch()
    except Exception as error:  # whatever a broken build or driver raises is the answer
        found["torch_problem"] = f"{type(error).__name__}: {error}"
    try:
        asyncio.run(_open_and_close())
    except ConfigError as error:
        found["sandbox_problem"] = str(error)
    return found


def _torch() -> Any:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
    devices = [_device(torch, index) for index in range(torch.cuda.device_count())]
    return {"torch": f"{torch.__version__}, built for {build}", "devices": devices}


def _device(torch: Any, index: int) -> Device:
    free, total = torch.cuda.mem_get_info(index)
    return Device(
        name=torch.cuda.get_device_name(index),
        total_gb=total / 1e9,
        free_gb=free / 1e9,
        has_bf16=torch.cuda.get_device_capability(index) >= (8, 0),
        problem=_product_problem(torch, torch.device("cuda", index)),
    )


def _product_problem(torch: Any, device: Any) -> str:
    """The error of a small product on the device; "" if it is right."""
    try:
        ones = torch.ones(TRIED_ROWS, TRIED_ROWS, device=device)
        got = float((ones @ ones).sum().cpu())
    except RuntimeError as error:
        return str(error)
    wanted = float(TRIED_ROWS**3)
    return "" if got == wanted else f"a product of ones sums to {got}, expected {wanted}"


async def _open_and_close() -> None:
    box = await open_box("bubblewrap")
    await box.close()


if __name__ == "__main__":
    print(json.dumps(look()))
