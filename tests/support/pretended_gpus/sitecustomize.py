"""Python imports this at its start: it makes torch, once that is imported, one of a machine with GPUs."""

import contextlib
import ctypes
import importlib.abc
import importlib.util
import os
import sys
import warnings
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

STATE_BYTES = 16  # of a GPU's random state


class AtImport(importlib.abc.MetaPathFinder):
    """Prepares and completes the import of torch."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        ctypes.CDLL(os.environ["PRETENDED_GPUS"], ctypes.RTLD_GLOBAL).pretend()
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            pretend(module)

        spec.loader.exec_module = exec_module
        return spec


class Event:
    """A moment of a stream: everything before it is complete."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class Stream:
    """A stream whose work is complete when the call returns."""

    stream_id, device_type, cuda_stream = 0, 1, 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = device, priority

    def wait_event(self, event: Any) -> None:
        assert event is not None

    def wait_stream(self, stream: Any) -> None:
        assert stream is not None

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class OfDevice(contextlib.nullcontext):
    """`torch.cuda.device`, where a process has one."""


def pretend(torch: Any) -> None:
    """Give torch what it lacks of a build for CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count, rank = len(visible.split(",")) if visible else 0, int(os.environ.get("LOCAL_RANK", "0"))
    here, cuda, name = torch.device("cuda", rank), torch.cuda, "Pretended GPU"
    current = Stream(here)

    def set_rng_state(state: Any, device: Any = None) -> None:
        assert state.device.type == "cpu", "the state of a GPU is set from the host"
        assert len(state) == STATE_BYTES, len(state)

    given = {
        "is_available": count > 0, "is_initialized": True, "device_count": count, "current_device": rank,
        "is_bf16_supported": True, "get_device_name": name, "get_device_capability": (9, 0),
        "mem_get_info": (60 << 30, 80 << 30), "memory_allocated": 1 << 20, "max_memory_allocated": 1 << 20,
        "memory_reserved": 1 << 20, "memory_stats": {}, "is_current_stream_capturing": False,
        "current_stream": current, "default_stream": current,
        "get_device_properties": SimpleNamespace(name=name, total_memory=80 << 30, major=9, minor=0),
    }  # fmt: skip
    for asked, value in given.items():
        setattr(cuda, asked, lambda *_, value=value, **__: value)
    for told in (
        "init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats",
        "manual_seed", "manual_seed_all",
    ):  # fmt: skip
        setattr(cuda, told, lambda *_, **__: None)
    cuda._lazy_init = partial(_note, visible.split(",")[rank % max(1, count)])  # at the first tensor
    cuda.get_rng_state = lambda *_: torch.get_rng_state()[:STATE_BYTES].clone()
    cuda.set_rng_state = set_rng_state
    cuda.Event, cuda.Stream, cuda.device, cuda.stream = Event, Stream, OfDevice, contextlib.nullcontext
    # tensors of inference mode have no version, which the device's results would want
    torch.inference_mode = type(
        "inference_mode", (torch.no_grad,), {"__init__": lambda self, mode=True: None}
    )
    _resize_storages(torch, here)
    if torch.distributed.is_available():
        _pretend_nccl(torch)


def _note(gpu: str) -> None:
    """Write down that this process computes on a GPU, for `used`."""
    name = sys.argv[sys.argv.index("--name") + 1] if "--name" in sys.argv else "?"
    with open(os.environ["PRETENDED_GPUS"] + ".used", "a") as file:
        file.write(f"{name} {gpu}\n")


def _resize_storages(torch: Any, here: Any) -> None:
    resize_host = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return resize_host(storage, size)
        whole = torch.empty(0, dtype=torch.uint8, device=here).set_(storage, 0, (0,), (1,))
        torch.ops.pretended_gpus.resize_storage(whole, size)
        return storage

    torch.UntypedStorage.resize_ = resize_


def _pretend_nccl(torch: Any) -> None:
    """Collectives of CUDA tensors go through gloo; NCCL takes no others."""
    import torch.distributed as dist

    def flat(given: Any) -> list[Any]:
        parts = given if isinstance(given, (list, tuple)) else [given]
        return [part for one in parts for part in (flat(one) if isinstance(one, (list, tuple)) else [one])]

    def on_host(given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [on_host(one) for one in given]
        return torch.ops.pretended_gpus.bytes_on_host(given) if isinstance(given, torch.Tensor) else given

    def collective(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            tensors = [one for one in flat(arguments) if isinstance(one, torch.Tensor)]
            assert all(one.is_cuda for one in tensors), f"NCCL got a tensor of the CPU in {name}"
            answer = getattr(torch.ops.c10d, name).default(*map(on_host, arguments), **named)
            if not isinstance(answer, tuple):
                return answer
            return (arguments[0], *answer[1:])  # what was reduced is the argument; the rest is the work

        return call

    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that there are kernels already, which is why
        for name in (
            "allreduce_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "reduce_scatter_",
            "_reduce_scatter_base_", "gather_", "scatter_", "alltoall_", "alltoall_base_",
        ):  # fmt: skip
            library.impl(name, collective(name), "CUDA", allow_override=True)
    begin = dist.init_process_group

    def init_process_group(backend: str | None = None, *arguments: Any, **named: Any) -> None:
        begin(backend.replace("nccl", "gloo") if backend else backend, *arguments, **named)

    dist.init_process_group = init_process_group
    torch.pretended_library = library  # its end would take the kernels away


if "PRETENDED_GPUS" in os.environ:
    sys.meta_path.insert(0, AtImport())
