"""A limit of CPU time around a verdict leaves the process's own limit as it was."""

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from workers.reward.kinds.cpu_limit import within

limits = tuple(map(int, sys.argv[1:]))
resource.setrlimit(resource.RLIMIT_CPU, limits)
assert within(1000.0, lambda: 7) == 7
assert resource.getrlimit(resource.RLIMIT_CPU) == limits
"""


@pytest.mark.parametrize("limits", [(500, 600), (500, resource.RLIM_INFINITY)])
def test_the_limits_of_the_process_are_put_back(limits):
    words = [sys.executable, "-c", PROGRAM, *map(str, limits)]  # a hard limit stays lowered
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
