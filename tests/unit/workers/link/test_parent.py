"""A process whose parent is gone before it can be watched."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are tied to one another by pidfd")
ROOT = Path(__file__).parents[4]
OUTLIVES = """
import sys
from workers.link.parent import outlive_parent
outlive_parent(int(sys.argv[1]), print, limit_s=600)
print("it goes on, and nobody will ever tell it")
"""


def test_a_process_whose_parent_has_ended_and_was_waited_for_ends_at_once():
    nobody = 2**22 + 1  # above what Linux gives
    command = [sys.executable, "-c", OUTLIVES, str(nobody)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
