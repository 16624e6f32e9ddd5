"""Tests that have passed in a tier of hours that was stopped, so that the next start goes on behind them.

Invariants: what is left out has passed with the very same code; a tier that has come to its end without a
failure leaves nothing behind, so the next one begins from the first test.
"""

from hashlib import blake2b
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    "install",
    "controller",
    "strategies",
    "protocol",
    "workers",
    "tests",
    "benchmarks",
    "examples",
    "docs",
)


class PassedBefore:
    """A plugin of pytest: leaves out what `file` names, and adds to it what passes now."""

    def __init__(self, file: Path, code: str) -> None:
        """`code`: what stands for the code that is tested; a file of other code is begun again."""
        self._file, self._code = file, code
        self._failed: set[str] = set()
        self._left_out = 0
        lines = file.read_text().splitlines() if file.is_file() else []
        self._passed = set(lines[1:]) if lines[:1] == [code] else set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begin the file, unless this is one of several processes that run the tests."""
        if not hasattr(session.config, "workerinput") and not self._passed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(f"{self._code}\n")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        left_out = [item for item in items if item.nodeid in self._passed]
        if left_out:
            items[:] = [item for item in items if item.nodeid not in self._passed]
            config.hook.pytest_deselected(items=left_out)

    def pytest_report_header(self) -> str:
        """Say what is left out."""
        return f"{len(self._passed)} tests have passed before, as {self._file} says, and are left out."

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note who has passed, once nothing of it can fail any more."""
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Leave nothing of a tier that is whole."""
        if not hasattr(session.config, "workerinput") and exitstatus == pytest.ExitCode.OK:
            self._file.unlink(missing_ok=True)


def state_of_code() -> str:
    """What changes with any file that tests read."""
    digest = blake2b(digest_size=16)
    files = [file for folder in CODE for file in (ROOT / folder).rglob("*") if file.is_file()]
    for file in sorted([*files, *ROOT.glob("*.*")]):
        if "__pycache__" not in file.parts and file.is_file():
            digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
