"""Makes a virtual environment beside launch.py when a dependency is missing, and goes on in it.

Invariants: standard library only; an environment is used only with a stamp that was written after everything
in it was installed, and that names the pyproject.toml it was made for and all extras that were ever installed
for that; an installation that changed nothing leaves the stamp; nothing takes long without a line every few
seconds; Ctrl-C leaves no process and no half of a new environment; STALEFLOW_NO_INSTALL=1 turns all of it
off.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BASE = ("zmq", "msgpack", "numpy", "pydantic", "uvloop", "yaml", "typer", "rich")
EXTRAS = {
    "workers": ("torch", "transformers", "safetensors", "xxhash"),
    "simulate": ("scipy", "matplotlib"),
    "test": ("pytest", "pytest_asyncio", "hypothesis", "psutil"),
}
"""Modules that show whether an extra of pyproject.toml is installed."""
NEEDED = {
    "render": [],
    "test": ["workers", "simulate", "test"],
    "conformance": ["workers", "test"],
    "simulate": ["simulate"],
}
"""Extras by command; every other one needs the workers."""
LAST_LINES = 15
SILENCE_S = 5.0  # of pip, until a line says that it is still at work
UNPACKING = "Installing collected packages:"  # pip changes nothing before it says this
FIRST_WORDS = ("Collecting", "Downloading", "Using cached", "Building", "Installing", "Successfully")
REENTERED = "STALEFLOW_REENTERED"
STOPPED = 130
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class InstallFailed(Exception):
    """An environment could not be made; the text is for the user."""


def ensure(arguments: list[str]) -> None:
    """Return when every module that the command needs can be imported; else install, and start again in
    `.venv`.

    Ends the process with 1 and the end of pip's output if installing fails.
    """
    extras = NEEDED.get(arguments[0] if arguments else "", ["workers"])
    missing = _missing(extras)
    if not missing:
        os.environ.pop(REENTERED, None)  # a launch.py that this one starts may install for itself
        return
    if os.environ.get("STALEFLOW_NO_INSTALL") == "1" or os.environ.get(REENTERED) == "1":
        sys.exit(
            f"{sys.executable} lacks {', '.join(missing)}; expected an environment with all dependencies. "
            f"Install them: {sys.executable} -m pip install -e '{ROOT}[{','.join(extras)}]'"
            + (
                ", or unset STALEFLOW_NO_INSTALL."
                if REENTERED not in os.environ
                else f", or delete {ROOT / '.venv'} and start again."
            )
        )
    environment = ROOT / ".venv"
    if not is_complete(environment, extras):
        try:
            install(environment, extras)
        except InstallFailed as error:
            sys.exit(str(error))
        except KeyboardInterrupt as stop:
            print(f"\n{stop}", file=sys.stderr)
            sys.exit(STOPPED)
    os.environ[REENTERED] = "1"
    python = str(python_of(environment))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # launch.py takes it up when it can
    os.execv(python, [python, str(ROOT / "launch.py"), *arguments])


def install(
    environment: Path, extras: list[str], *, unwanted: Sequence[str] = (), limit_s: float | None = None
) -> None:
    """Make the environment and stamp it, with a line about every step from the first second on.

    `unwanted`: packages that the extras bring, and that are taken out again.
    Raises: InstallFailed, with the end of pip's output; also if pip takes longer than `limit_s`.
    KeyboardInterrupt, with what is left, when nothing runs any more.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)

    is_new = not environment.exists()
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        _install(environment, extras, say, unwanted=unwanted, limit_s=limit_s)
    except KeyboardInterrupt:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second one must not leave half of it
        raise KeyboardInterrupt(_give_up(environment, is_new=is_new)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up(environment: Path, *, is_new: bool) -> str:
    """Leave nothing that looks like an environment; what to say of it."""
    words = f"Stopped while installing; no process is left, and {environment} is "
    if is_new:
        shutil.rmtree(environment, ignore_errors=True)
        return words + "removed. Start again to install; pip keeps what it has downloaded."
    return words + "unfinished, as it was there before. Start again to finish it."


def _install(
    environment: Path,
    extras: list[str],
    say: Callable[[str], None],
    *,
    unwanted: Sequence[str],
    limit_s: float | None,
) -> None:
    say(f"first start: installing what StaleFlow needs into {environment} (some minutes, once)")
    if (
        sys.platform == "linux"
        and not Path("/dev/nvidia0").exists()
        and "PIP_EXTRA_INDEX_URL" not in os.environ
    ):
        say(
            "no GPU here: with PIP_EXTRA_INDEX_URL set to PyTorch's index of CPU builds, far less is "
            "downloaded"
        )
    before = _installed(environment)
    _stamp(environment).unlink(missing_ok=True)
    if not _has_pip(environment):  # not there, or killed while it was made
        say("step 1/2: creating the environment")
        try:
            venv.create(environment, with_pip=True, clear=environment.exists())
        except (OSError, subprocess.CalledProcessError) as error:
            raise InstallFailed(
                f"Creating {environment} failed: {error}. Expected a writable folder and Python's venv "
                "module (on Debian: apt install python3-venv); mend that, or install into an environment "
                "of yours and set STALEFLOW_NO_INSTALL=1."
            ) from error
    say(f"step 2/2: pip install -e .[{','.join(extras)}]")
    command = [
        str(python_of(environment)),
        "-m",
        "pip",
        "install",
        "--progress-bar",
        "off",
        "-e",
        f"{ROOT}[{','.join(extras)}]",
    ]
    code, last = _run_pip(command, say, limit_s)
    if code and before is not None and not any(line.startswith(UNPACKING) for line in last):
        _write_stamp(environment, before)
    if code:
        raise InstallFailed(
            "\n".join(last)
            + f"\npip ended with code {code}; the lines above say why. Expected a network or a "
            "local index, and a few GB of free disk. Mend that and start again; what was downloaded is "
            f"kept. By hand: {' '.join(command)}"
        )
    if unwanted:
        remove = [str(python_of(environment)), "-m", "pip", "uninstall", "-y", *unwanted]
        subprocess.run(remove, check=True, stdout=subprocess.DEVNULL)
    _write_stamp(environment, [*dict.fromkeys([*(before or ()), *extras])])
    say("installed")


def _run_pip(command: list[str], say: Callable[[str], None], limit_s: float | None) -> tuple[int, deque[str]]:
    """Exit code and last lines, with that about unpacking if there was one."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    unpacking: list[str] = []
    watch = _Watch(Path(command[0]).parents[1], say)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    ) as pip:  # fmt: skip
        assert pip.stdout is not None
        limit = threading.Timer(limit_s or threading.TIMEOUT_MAX, _kill_session, [pip])
        limit.daemon = True
        limit.start()
        watch.start()
        try:
            for line in pip.stdout:
                last.append(line.rstrip())
                unpacking += [line.rstrip()] if line.startswith(UNPACKING) else []
                watch.heard(line)
                if line.lstrip().startswith(FIRST_WORDS):
                    say(f"  {line.strip().partition(' (from')[0][:110]}")
            pip.wait()
        finally:
            watch.stop()
            limit.cancel()
            _kill_session(pip)  # with the compilers that it started
            pip.wait()
    return pip.returncode, last if not unpacking or unpacking[0] in last else deque([*unpacking, *last])


class _Watch(threading.Thread):
    """Says what pip does while it says nothing itself: it unpacks for minutes without a word."""

    def __init__(self, environment: Path, say: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="watch over pip")
        self._environment, self._say = environment, say
        self._was_heard, self._is_over = threading.Event(), False
        self._line, self._packages, self._there = "pip starts", list[str](), 0
        self._since = time.monotonic()

    def heard(self, line: str) -> None:
        """This is what pip does now."""
        self._line, self._since = line.strip().partition(" (from")[0][:80], time.monotonic()
        if line.startswith(UNPACKING):
            self._packages = line.partition(":")[2].replace(" ", "").strip().split(",")
            self._there = self._count()
        self._was_heard.set()

    def stop(self) -> None:
        """It is over."""
        self._is_over = True
        self._was_heard.set()
        self.join()

    def run(self) -> None:
        while not self._is_over:
            if self._was_heard.wait(SILENCE_S):
                self._was_heard.clear()
                continue
            text, for_s = self._line, time.monotonic() - self._since
            if self._packages:
                done = min(max(0, self._count() - self._there), len(self._packages) - 1)
                text = f"unpacking {self._packages[done]}, {done + 1} of {len(self._packages)} packages"
            self._say(f"  still at it, for {for_s:.0f} s: {text}")

    def _count(self) -> int:
        """Packages in the environment: pip writes the metadata of each last."""
        return sum(1 for _ in self._environment.glob("lib*/python*/site-packages/*.dist-info/RECORD"))


def _kill_session(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _has_pip(environment: Path) -> bool:
    python = python_of(environment)
    return python.exists() and not subprocess.run([python, "-m", "pip", "-V"], capture_output=True).returncode


def _missing(extras: list[str]) -> list[str]:
    modules = [*BASE, *(module for extra in extras for module in EXTRAS[extra])]
    return [module for module in modules if importlib.util.find_spec(module) is None]


def is_complete(environment: Path, extras: list[str]) -> bool:
    """Whether these extras, of this pyproject.toml, were installed to the end."""
    installed = _installed(environment)
    return installed is not None and set(extras) <= set(installed)


def _installed(environment: Path) -> list[str] | None:
    """The extras of this pyproject.toml that are in the environment; None if it is not known to be whole."""
    try:
        stamp = json.loads(_stamp(environment).read_text())
    except (OSError, ValueError):
        return None
    return stamp["extras"] if stamp["project"] == _project_hash() else None


def _write_stamp(environment: Path, extras: list[str]) -> None:
    _stamp(environment).write_text(json.dumps({"project": _project_hash(), "extras": extras}))


def _stamp(environment: Path) -> Path:
    return environment / "staleflow.json"


def _project_hash() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def python_of(environment: Path) -> Path:
    """Its interpreter."""
    return environment / ("Scripts" if os.name == "nt" else "bin") / "python"
