"""How many files a process may have open, raised as far as the system lets it, and said."""

import resource
import subprocess
import sys

import pytest

from controller.check.problems import check
from controller.config.models import Config
from protocol.wire.descriptors import NR_OPEN, OWN, DescriptorLimit, limit

RAISED = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 500))
from protocol.wire.descriptors import are_spent, limit, raise_limit
assert limit() == (500, 200) == raise_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, 500)
count = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
assert subprocess.run([sys.executable, "-c", count], capture_output=True).stdout == b"500\\n"
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError as error:
    assert are_spent(error)
"""


def test_the_soft_limit_is_raised_to_the_hard_one_for_this_process_and_its_children():
    subprocess.run([sys.executable, "-W", "ignore", "-c", RAISED], check=True)


def test_a_worker_needs_one_and_the_usual_hard_limit_has_room_for_thousands():
    assert DescriptorLimit(4096, 1024).workers == 4096 - OWN - 1024
    assert DescriptorLimit(524_288, 1024).strangers == 4096
    assert (
        "4,096 files and connections may be open (the soft limit was 1,024)"
        in DescriptorLimit(4096, 1024).in_words()
    )


def test_check_says_how_many_workers_that_carries_and_refuses_more():
    (found,) = [one for one in check(Config()) if "files and connections may be open" in one.text]
    assert (found.level, found.field) == ("note", "controller.bind")
    assert f"enough for {limit().workers:,} workers" in found.text
    many = Config.model_validate({"rollout": {"instances": limit().workers + 1}})
    (found,) = [one for one in check(many) if "files and connections may be open" in one.text]
    assert found.level == "error"


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 1024])
def test_unlimited_is_what_the_kernel_says(monkeypatch, hard):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, hard))
    assert limit().before == 1024
    assert limit().now == (1024 if hard == 1024 else int(NR_OPEN.read_text()))
