"""`launch.py install`: installs the packages that runs need, and vLLM in an environment of its own.

Invariant: the environment of vLLM is beside launch.py, since vLLM pins some 150 packages that hardly anything
else needs; it is stamped after everything is installed, and tried before it is recommended.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import install
from install.project import launcher
from install.vllm_environment import VLLM_ENVIRONMENT, unwanted, vllm_extras
from protocol.errors import ConfigError, RunError

ROOT = Path(__file__).resolve().parents[2]
VLLM_GB = 8  # of disk during the installation: downloads, and 4 GB that stay
MACHINES = ("x86_64", "aarch64")  # for which there are builds of vLLM, on Linux
TRIAL = "import transformers; transformers.Qwen3ForCausalLM; import vllm; print(vllm.__version__)"


def install_packages(
    vllm: Annotated[
        bool, typer.Option("--vllm", help="vLLM too, in .venv-vllm: 4 GB with what it needs, some minutes.")
    ] = False,
) -> None:
    """Install what a run needs; launch.py does so by itself too, but for vLLM."""
    if not vllm:
        more = " `launch.py install --vllm` adds vLLM." if install.has_folder() else ""
        print(f"{sys.executable} has all that a run needs.{more}")
        return
    if not install.is_complete(VLLM_ENVIRONMENT, vllm_extras()):
        if obstacle := why_not_here():
            raise ConfigError(f"vLLM is not installed: {obstacle}.")
        try:
            install.install(VLLM_ENVIRONMENT, vllm_extras(), unwanted=unwanted())
        except install.InstallFailed as error:
            raise RunError(str(error)) from error
    print(f"vLLM {_tried()} is in {VLLM_ENVIRONMENT}. A run uses it if it is started from there:")
    here = launcher().removeprefix("python3 ")
    print(f"  {install.python_of(VLLM_ENVIRONMENT)} {here} CONFIG.yaml rollout.engine=vllm")


def why_not_here() -> str:
    """Why vLLM cannot be installed on this machine; "" if it can."""
    if os.environ.get("STALEFLOW_NO_INSTALL") == "1":
        return "STALEFLOW_NO_INSTALL=1 forbids to install it"
    if not install.has_folder():
        by_hand = install.by_hand(vllm_extras())
        return f"launch.py installs only into a checkout. In an environment made for vLLM: {by_hand}"
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in MACHINES:
        here = f"{sys.platform} on {machine}"
        return f"it has builds only for Linux on {' or '.join(MACHINES)}, and this is {here}"
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < VLLM_GB:
        return f"{free_gb:.1f} GB of disk are free in {ROOT}; installing it takes {VLLM_GB}"
    return ""


def _tried() -> str:
    """The version of vLLM that the environment imports. Raises: RunError with the cause if it fails."""
    python = str(install.python_of(VLLM_ENVIRONMENT))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    tried = subprocess.run([python, "-c", TRIAL], env=environment, capture_output=True, text=True, cwd=ROOT)
    if tried.returncode:
        last = tried.stderr.strip().splitlines()[-1:] or [f"code {tried.returncode}"]
        raise RunError(
            f"{VLLM_ENVIRONMENT} was installed, but does not import vLLM and transformers: {last[0]} "
            "Expected builds of torch and vLLM that belong together: delete the folder and install again."
        )
    return tried.stdout.strip().splitlines()[-1]
