"""What vLLM's own processes do first: keep the first words of a failure, and end with their worker."""

import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workers.engines.vllm import in_core

CHILD = """
import os, signal, sys
from workers.engines.vllm import in_core
in_core.begin()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    os.kill(os.getpid(), number)
print(os.getpid(), flush=True)
signal.pause()
"""
WORKER = """
import os, subprocess, sys
from pathlib import Path
from workers.engines.vllm import in_core
with in_core.environment(Path(sys.argv[1]), is_eager=True):
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=sys.stdout)
child.wait()
"""


def test_an_environment_is_given_for_as_long_as_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv(in_core.OWNER, "before")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    with in_core.environment(tmp_path / "words", is_eager=True):
        assert os.environ[in_core.OWNER] == str(os.getpid())
        assert os.environ["TORCH_COMPILE_DISABLE"] == "1"
        in_core.begin()  # this is the worker itself: nothing is tied, no signal is ignored
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    assert os.environ[in_core.OWNER] == "before"
    assert "TORCH_COMPILE_DISABLE" not in os.environ
    assert in_core.WORDS not in os.environ


def test_of_several_exceptions_that_are_logged_the_first_is_kept_with_its_innermost_cause(tmp_path):
    handler, log = in_core._FirstWords(tmp_path / "words"), logging.getLogger("test_in_core")
    log.addHandler(handler)
    log.propagate = False
    log.error("no exception")
    for words in ("no memory\nfor a cache", "the engine has failed"):
        try:
            raise RuntimeError("worker failed") from ValueError(words)
        except RuntimeError:
            log.exception("failed")
    log.removeHandler(handler)
    assert (tmp_path / "words").read_text() == "RuntimeError: no memory for a cache."


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this kernel or Python has no pidfd")
def test_a_core_heeds_no_signal_of_a_terminal_and_ends_when_its_worker_is_killed(tmp_path: Path):
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path / "words"), CHILD], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    core = int(worker.stdout.readline())
    worker.stdout.close()
    end = os.pidfd_open(core)
    worker.kill()
    worker.wait(60)
    try:
        assert select.select([end], [], [], 60)[0]
    finally:
        if not select.select([end], [], [], 0)[0]:
            signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)
