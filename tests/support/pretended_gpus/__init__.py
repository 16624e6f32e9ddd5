"""GPUs that are pretended: torch of this machine says `cuda`, has streams and NCCL, and computes on the CPU.

They find what only a GPU would: a tensor that was left on the CPU, a conversion to numpy, a random state of
the wrong device, a storage that stays when its device is left, NCCL on tensors of the host. They say nothing
about kernels, precision, order of streams, or speed.

`device.cpp` is the device, which torch's dispatcher finds as it finds CUDA; `sitecustomize.py` has what torch
asks of Python (`torch.cuda`) in every process that is started with `environment`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")


def compiled(folder: Path) -> Path:
    """The device as a library, compiled for the torch that is installed: half a minute."""
    found = [sys.executable, "-c", "import torch; print(torch.__path__[0])"]
    torch = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    library = folder / "pretended_gpus.so"
    include = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    linked = [f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath={torch}/lib"]
    flags = ["-O1", "-w", "-shared", "-fPIC", "-std=c++20"]
    subprocess.run(
        [str(COMPILER), *flags, *include, str(HERE / "device.cpp"), *linked, "-o", str(library)], check=True
    )
    return library


def environment(library: Path, *, gpus: int) -> dict[str, str]:
    """Variables of a process that sees so many GPUs, and of those that it starts."""
    paths = [str(HERE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    visible = ",".join(map(str, range(gpus)))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths), "PRETENDED_GPUS": str(library), "CUDA_VISIBLE_DEVICES": visible
    }  # fmt: skip


def used(library: Path) -> dict[str, set[str]]:
    """The GPUs on which each worker has made tensors, by its name; forgets them."""
    file, found = library.with_name(f"{library.name}.used"), {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, gpu = line.split()
        found.setdefault(name, set()).add(gpu)
    file.unlink(missing_ok=True)
    return found
