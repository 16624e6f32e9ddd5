"""`launch.py test`: the project's tests, then those of the vLLM engine in an environment of their own.

`--fast` runs the unit tests and the properties at few examples; `--costly`, the tier of CI, adds whole runs
whose promise a cheaper test shows as well, which are marked `costly`, and the connectors to verifiers and
OpenEnv in an environment of theirs; `--thorough` adds all these and the long sweeps, which are marked
`thorough`.

A thorough tier that was stopped continues with the tests that have not passed, if the code is the same.

Invariants: a failed test fails the command; packages that cannot be installed here do not, and one line says
why they were left out; named tests run one after the other, whole tiers on all cores.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import install
from controller.cli.install import why_not_here
from controller.cli.needs import require_extras, require_folder
from install.connectors_environment import CONNECTORS_ENVIRONMENT, CONNECTORS_EXTRAS
from install.vllm_environment import UNWANTED, VLLM_ENVIRONMENT, VLLM_EXTRAS

ROOT = Path(__file__).resolve().parents[2]
VLLM_TESTS = [
    "tests/conformance",
    *map(str, sorted(ROOT.glob("tests/**/test_vllm_*.py"))),
    "--engine",
    "vllm",
]
CONNECTOR_TESTS = [
    *map(str, sorted(ROOT.glob("tests/**/test_connected_*.py"))), "-m", "",
    "-W", "ignore::pytest.PytestUnraisableExceptionWarning",  # libraries leave sockets open
]  # fmt: skip
PASSED = f"--passed={ROOT / '.pytest_cache' / 'passed_before'}"  # of a thorough tier that was stopped
FAST = ["--few-examples", "tests/unit", "tests/properties"]
WITH_COSTLY, EVERYTHING = ["-m", "not thorough"], ["-m", ""]  # in place of the filter in pyproject.toml
SLOWEST = "--durations=20"
INSTALL_LIMIT_S = 900.0  # then the network is too slow for it


def run_tests(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="Unit tests and properties at few examples alone.")
    ] = False,
    costly: Annotated[
        bool,
        typer.Option("--costly", help="Run costly tests too, and those of connectors: what CI runs."),
    ] = False,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Run the long sweeps too: some ten thousand random worlds."),
    ] = False,
    without_vllm: Annotated[
        bool,
        typer.Option("--without-vllm", help="Leave out the part that installs vLLM (4 GB) and tests it."),
    ] = False,
) -> None:
    """Run the project's tests. Further arguments go to pytest; then only the tests that they name run."""
    import pytest

    if fast + costly + thorough > 1:
        raise typer.BadParameter("--fast, --costly and --thorough exclude each other; expected one, or none.")
    require_folder("The tests are a part")
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small are slower with more threads
    keep_bytecode()
    chosen = EVERYTHING if thorough else WITH_COSTLY if costly else []
    if context.args:
        few = ["--few-examples"] if fast else []
        raise typer.Exit(int(pytest.main([*chosen, *few, *context.args])))
    require_extras("lint", reason="every tier runs a linter and a type checker")
    words = [
        *chosen,
        *([PASSED] if thorough else []),
        *on_all_cores(fast),
        SLOWEST,
        *(FAST if fast else ["tests"]),
    ]
    code = int(pytest.main(words))
    if not code and not fast:
        code = test_vllm("--without-vllm was given" if without_vllm else why_no_vllm(), chosen)
    if not code and (costly or thorough):
        code = test_connectors(why_no_connectors())
    raise typer.Exit(code)


def keep_bytecode() -> None:
    """Let Python keep bytecode, also where the environment forbids it, as container images do.

    The tests start some hundred processes, and each would compile all its imports again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def on_all_cores(fast: bool) -> list[str]:
    """Arguments of pytest that keep all cores busy; none without pytest-xdist.

    The fast tier runs one test per core at a time. Other tiers run one more: tests with real processes often
    wait.
    """
    if find_spec("xdist") is None:
        print("pytest-xdist is missing, so that tests run one after the other: pip install -e '.[test]'")
        return []
    count = len(os.sched_getaffinity(0)) + (not fast)
    return [f"-n{count}", "--dist=worksteal"]


def why_no_vllm() -> str:
    """Why the tests of vLLM are left out here; "" if they run in vLLM's environment."""
    if find_spec("vllm") is not None:
        return "it is installed in this environment, so its tests have run with the others"
    if install.is_complete(VLLM_ENVIRONMENT, VLLM_EXTRAS):
        return ""
    if install.has_gpu():
        return "its build without a GPU is for machines without one; here, `launch.py install --vllm`"
    return why_not_here()


def why_no_connectors() -> str:
    """Why the tests of connectors are left out here; "" if they run in their environment."""
    if find_spec("verifiers") is not None and find_spec("openenv") is not None:
        return "they are installed in this environment, so their tests have run with the others"
    if os.environ.get("STALEFLOW_NO_INSTALL") == "1":
        is_there = install.is_complete(CONNECTORS_ENVIRONMENT, CONNECTORS_EXTRAS)
        return "" if is_there else "STALEFLOW_NO_INSTALL=1 forbids to install them"
    return ""


def test_vllm(obstacle: str, chosen: Sequence[str]) -> int:
    """Run the tests that need vLLM, `chosen` by arguments of pytest; returns the exit code, 0 if left out."""
    tests = [*VLLM_TESTS, *chosen]
    return _test_in(VLLM_ENVIRONMENT, VLLM_EXTRAS, tests, "vLLM", obstacle, unwanted=UNWANTED)


def test_connectors(obstacle: str) -> int:
    """Run the tests that need verifiers or openenv-core; returns the exit code, 0 if left out."""
    return _test_in(
        CONNECTORS_ENVIRONMENT, CONNECTORS_EXTRAS, CONNECTOR_TESTS, "The part of connectors", obstacle
    )


def _test_in(
    place: Path, extras: list[str], tests: list[str], name: str, obstacle: str, unwanted: Sequence[str] = ()
) -> int:
    """Run tests in an environment of their own, made if missing; returns the exit code, 0 if left out."""
    if not obstacle and not install.is_complete(place, extras):
        try:
            install.install(place, extras, unwanted=unwanted, limit_s=INSTALL_LIMIT_S)
        except install.InstallFailed as error:
            obstacle = f"it could not be installed: {error}"
    if obstacle:
        print(f"{name} is left out: {obstacle}.", flush=True)
        return 0
    print(f"{name}, in {place}:", flush=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "STALEFLOW_NO_INSTALL": "1"}
    words = [str(install.python_of(place)), "-m", "pytest", *tests]
    return subprocess.run(words, cwd=ROOT, env=environment).returncode
