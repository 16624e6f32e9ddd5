"""Everything that a card changes, measured on this machine in under ten minutes, as one Markdown table.

Each part runs in a process of its own, so one that crashes, hangs or runs out of memory is a row with its
last words, and the others go on. Without a card it is a rehearsal on the CPU: a small model, and figures that
mean nothing but that every part ran. Ends with 1 if a part failed.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers

from benchmarks.gpu.exactness import engine_rows, trainer_rows
from benchmarks.gpu.sizes import Finding, Size, size_of
from benchmarks.gpu.speed import decode_rows, quickstart_rows, step_rows, update_rows
from workers.models.model import pick_device

DEADLINE_S = 600.0  # of all parts together
REHEARSAL_S = 3600.0  # the same without a card, beside other work: what is shown is that each part ends
MARK = "finding "  # before a row on a part's output
Part = Callable[[torch.device, Size], Iterator[Finding]]
PARTS: dict[str, Part] = {
    "engine": engine_rows, "trainer": trainer_rows, "decoding": decode_rows, "updates": update_rows,
    "train step": step_rows, "quickstart": quickstart_rows,
}  # fmt: skip


def machine(device: torch.device) -> str:
    """One line on what was measured."""
    name = platform.machine()
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        name = f"{about.name}, {about.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
    flash = "with" if importlib.util.find_spec("flash_attn") else "without"
    return (
        f"{name}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{flash} flash-attn"
    )


def measured(part: str, device: torch.device, seconds: float) -> Iterator[Finding]:
    """The rows of a part, run in a process of its own. Raises: RuntimeError with its last words."""
    if seconds <= 0:
        raise RuntimeError("it was not run: the parts before took all the time that there was")
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--device", str(device)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"it did not end within the {seconds:.0f} s that were left") from error
    for line in ended.stdout.splitlines():
        if line.startswith(MARK):
            yield Finding(*json.loads(line.removeprefix(MARK)))
    if ended.returncode:
        words = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise RuntimeError(words[:300])


def table(device: torch.device, deadline_s: float) -> tuple[str, list[str]]:
    """The page, and the parts that failed."""
    began, failed = time.monotonic(), []
    title = "# Measured on a card" if device.type == "cuda" else "# Rehearsed without a card"
    lines = [f"{title}\n", f"`python -m benchmarks.gpu`: {machine(device)}.\n"]
    lines += ["| what | figure | beside it |", "|---|---|---|"]
    for part in PARTS:
        try:
            for row in measured(part, device, deadline_s - (time.monotonic() - began)):
                lines.append(f"| {row.what} | {row.figure} | {row.beside} |")
                print(lines[-1], flush=True)
        except RuntimeError as error:
            failed.append(part)
            lines.append(f"| {part} | **failed**: {' '.join(str(error).split()).replace('|', '/')} | |")
            print(lines[-1], flush=True)
    lines.append(f"\n{time.monotonic() - began:.0f} s in all.")
    return "\n".join(lines) + "\n", failed


def run_part(part: str, device: torch.device, size: Size) -> None:
    """Print the rows of a part, for the process that started this one."""
    for row in PARTS[part](device, size):
        print(MARK + json.dumps(row), flush=True)


def main() -> int:
    """Write the table; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N or cpu")
    parser.add_argument("--part", choices=PARTS, help="this part alone, its rows as JSON")
    parser.add_argument("--output", type=Path, default=Path("gpu.md"))
    options = parser.parse_args()
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # a rehearsal has other work beside it
    if options.part:
        run_part(options.part, device, size_of(device))
        return 0
    page, failed = table(device, REHEARSAL_S if device.type == "cpu" else DEADLINE_S)
    options.output.write_text(page, encoding="utf-8")
    print(f"\n{options.output} has the table" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
