"""The tiers of `launch.py test`: what is run, how many examples, how many tests at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from controller.cli import testing

PROPERTIES = """
from hypothesis import given, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule

seen = {"plain": 0, "function": 0, "machine": 0}

@given(strategies.integers())
def test_plain(n):
    seen["plain"] += 1

class Tests:
    @settings(max_examples=70)
    @given(strategies.integers())
    def test_function(self, n):
        seen["function"] += 1

class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        seen["machine"] += 1

    @rule()
    def nothing(self):
        pass

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=2)

def test_seen():
    print(seen)
"""


@pytest.fixture
def asked(monkeypatch):
    """The words that pytest is started with; no test is run."""
    calls: list[list[str]] = []
    monkeypatch.setattr(pytest, "main", lambda words: calls.append(list(words)) or 0)
    monkeypatch.setattr(testing, "test_vllm", lambda obstacle: calls.append(["vllm", obstacle]) or 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return calls


def launch(*words):
    application = typer.Typer()
    extra = {"allow_extra_args": True, "ignore_unknown_options": True}
    application.command(context_settings=extra)(testing.run_tests)
    return CliRunner().invoke(application, words)


def test_the_default_runs_everything_on_all_cores_and_shows_the_slowest(asked):
    assert launch("--without-vllm").exit_code == 0
    cores = f"-n{len(os.sched_getaffinity(0))}"
    assert asked == [
        [cores, "--dist=worksteal", "--durations=20", "tests"],
        ["vllm", "--without-vllm was given"],
    ]


def test_the_fast_tier_is_unit_tests_and_few_examples_without_vllm(asked):
    assert launch("--fast").exit_code == 0
    (words,) = asked
    assert words[-3:] == ["--few-examples", "tests/unit", "tests/properties"]


def test_the_thorough_tier_leaves_nothing_out(asked):
    assert launch("--thorough", "--without-vllm").exit_code == 0
    assert asked[0][:2] == ["-m", ""]
    assert asked[0][-1] == "tests"


def test_fast_and_thorough_are_refused_together(asked):
    assert launch("--fast", "--thorough").exit_code == 2
    assert asked == []


def test_without_xdist_tests_run_one_after_the_other_and_a_line_says_so(asked, monkeypatch):
    monkeypatch.setattr(testing, "find_spec", lambda name: None)
    done = launch("--fast")
    assert "pytest-xdist is missing" in done.stdout
    assert asked[0][0] == "--durations=20"


@pytest.mark.parametrize(("words", "expected"), [((), (100, 70, 40)), (("--few-examples",), (10, 10, 10))])
def test_few_examples_are_at_most_ten_of_each_property(tmp_path, words, expected):
    file = tmp_path / "test_properties.py"
    file.write_text(PROPERTIES)
    root = Path(testing.ROOT)
    command = [sys.executable, "-m", "pytest", "-s", "-c", str(root / "pyproject.toml"), *words]
    options = ["--confcutdir", str(root), "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run([*command, *options], cwd=root, capture_output=True, text=True, check=True)
    plain, function, machine = expected
    seen = {"plain": plain, "function": function, "machine": machine}
    assert str(seen) in done.stdout
