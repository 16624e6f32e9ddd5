"""Metrics of machines: memory of workers by role, and the number of devices.

Invariant: pure; workers are counted by role and never named, so that a line does not grow with the fleet.
"""

from collections.abc import Iterable

from controller.config.models import Config
from controller.core.state.accounts import Devices
from controller.core.state.registry import Worker
from protocol.messages import MachineUse


def memory_figures(workers: Iterable[Worker]) -> dict[str, object]:
    """Memory of the largest worker of each role: `memory/ROLE_mb`, and `memory/ROLE_device_mb` of a device.

    Units: megabytes of 1024 * 1024 bytes, by the last report of each worker; roles without reports are left
    out.
    """
    by_role: dict[str, list[MachineUse]] = {}
    for worker in workers:
        if worker.usage is not None:
            by_role.setdefault(worker.role, []).append(worker.usage)
    found: dict[str, object] = {}
    for role, used in sorted(by_role.items()):
        found[f"memory/{role}_mb"] = max(one.resident_mb for one in used)
        if any(one.device_total_mb for one in used):
            found[f"memory/{role}_device_mb"] = max(one.device_mb for one in used)
    return found


def devices_of(config: Config) -> Devices:
    """Devices of one instance and of the trainer. On a CPU an instance or a rank counts as one."""
    vllm = config.rollout.vllm.tensor_parallel_size if config.rollout.engine == "vllm" else 1
    return Devices(vllm, config.trainer.ranks)
