"""`launch.py test` in processes of its own: which tests it runs, and what becomes of vLLM's part."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import install
from controller.cli import testing
from tests.support.vllm_environment import not_installed, pretend_installed

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
def environment(tmp_path, monkeypatch):
    """Where the vLLM environment would be; there is none yet, and one may be installed."""
    return not_installed(tmp_path / "environment", monkeypatch)


def test_a_package_that_cannot_be_had_leaves_vllm_out_and_fails_nothing(environment, monkeypatch, capfd):
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    assert testing.test_vllm("", []) == 0
    said = capfd.readouterr().out
    assert "vLLM is left out: it could not be installed" in said
    assert "pip ended with code 1" in said
    assert not install.is_complete(environment, testing.VLLM_EXTRAS)


@pytest.mark.parametrize(("line", "code"), [("assert True", 0), ("assert False", 1)])
def test_a_test_of_vllm_that_fails_fails_the_command(environment, monkeypatch, tmp_path, line, code):
    pretend_installed(environment)
    file = tmp_path / "test_one.py"
    file.write_text(f"def test_one():\n    {line}\n")
    monkeypatch.setattr(testing, "VLLM_TESTS", [str(file), "-p", "no:cacheprovider"])
    assert testing.test_vllm("", []) == code


def test_named_tests_are_run_alone(tmp_path):
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    pass\n")
    words = [sys.executable, str(testing.ROOT / "launch.py"), "test", str(file)]
    done = subprocess.run([*words, "-p", "no:cacheprovider"], capture_output=True, text=True, check=True)
    assert "1 passed" in done.stdout
    assert "vLLM" not in done.stdout


TWO_TESTS = """
import pytest

@pytest.mark.thorough
def test_long():
    pass

def test_short():
    pass
"""


@pytest.mark.parametrize(
    ("option", "outcome"), [([], "1 passed, 1 deselected"), (["--thorough"], "2 passed")]
)
def test_long_sweeps_are_run_when_they_are_asked_for(tmp_path, option, outcome):
    file = tmp_path / "test_two.py"
    file.write_text(TWO_TESTS)
    words = [sys.executable, str(testing.ROOT / "launch.py"), "test", *option, str(file)]
    settings = ["-c", str(testing.ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *settings], capture_output=True, text=True, check=True)
    assert outcome in done.stdout


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


ONE_FAILS = """
import os

def test_first():
    assert "FIRST" not in os.environ

def test_second():
    assert "SECOND" not in os.environ
"""


@pytest.mark.parametrize("at_a_time", [(), ("-n2",)], ids=["one by one", "beside each other"])
def test_a_tier_that_was_stopped_goes_on_behind_what_has_passed(tmp_path, at_a_time):
    file, passed, root = tmp_path / "test_two.py", tmp_path / "passed", Path(testing.ROOT)
    file.write_text(ONE_FAILS)
    command = [sys.executable, "-m", "pytest", "-c", str(root / "pyproject.toml"), "--confcutdir", str(root)]
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", f"--passed={passed}", *at_a_time, str(file)]

    def run(**variables: str) -> str:
        surroundings = os.environ | variables
        return subprocess.run(
            [*command, *options], cwd=root, env=surroundings, capture_output=True, text=True
        ).stdout

    assert "1 failed, 1 passed" in run(SECOND="fails")
    again = run(FIRST="fails")  # which has passed
    assert "1 passed" in again
    assert "failed" not in again
    assert not passed.exists()
    assert "2 passed" in run()
    passed.write_text("other code\ntest_two.py::test_first\ntest_two.py::test_second\n")
    assert "2 passed" in run()
