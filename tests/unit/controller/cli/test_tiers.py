"""The tiers of `launch.py test`: what is run, how many examples, how many tests at a time."""

import os
import sys

import pytest
import typer
from typer.testing import CliRunner

from controller.cli import testing


@pytest.fixture
def asked(monkeypatch):
    """The words that pytest is started with; no test is run."""
    calls: list[list[str]] = []
    monkeypatch.setattr(pytest, "main", lambda words: calls.append(list(words)) or 0)
    monkeypatch.setattr(testing, "test_vllm", lambda why, chosen: calls.append(["vllm", why, *chosen]) or 0)
    monkeypatch.setattr(testing, "require_extras", lambda *_, **__: None)  # tests by name install no linter
    monkeypatch.setattr(testing, "why_no_connectors", lambda: "this is a test")
    monkeypatch.setattr(testing, "test_connectors", lambda why: calls.append(["connectors", why]) or 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return calls


def launch(*words):
    application = typer.Typer()
    extra = {"allow_extra_args": True, "ignore_unknown_options": True}
    application.command(context_settings=extra)(testing.run_tests)
    return CliRunner().invoke(application, words)


def test_the_default_runs_everything_with_one_test_more_than_cores_and_shows_the_slowest(asked):
    assert launch("--without-vllm").exit_code == 0
    at_a_time = f"-n{len(os.sched_getaffinity(0)) + 1}"
    assert asked == [
        [at_a_time, "--dist=worksteal", "--durations=20", "tests"],
        ["vllm", "--without-vllm was given"],
    ]


def test_the_fast_tier_is_unit_tests_and_few_examples_without_vllm(asked):
    assert launch("--fast").exit_code == 0
    (words,) = asked
    assert words[0] == f"-n{len(os.sched_getaffinity(0))}"
    assert words[-3:] == ["--few-examples", "tests/unit", "tests/properties"]


def test_processes_of_tests_keep_what_they_compile(asked):
    launch("--fast")
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_the_thorough_tier_leaves_nothing_out(asked):
    assert launch("--thorough", "--without-vllm").exit_code == 0
    assert asked[0][:3] == ["-m", "", testing.PASSED]
    assert asked[0][-1] == "tests"
    assert asked[1:] == [["vllm", "--without-vllm was given", "-m", ""], ["connectors", "this is a test"]]


def test_costly_tests_are_run_where_they_are_asked_for_those_of_vllm_and_connectors_too(asked):
    assert launch("--costly", "--without-vllm").exit_code == 0
    assert asked[0][:2] == ["-m", "not thorough"]
    vllm, connectors = asked[1:]
    assert vllm == ["vllm", "--without-vllm was given", "-m", "not thorough"]
    assert connectors == ["connectors", "this is a test"]


@pytest.mark.parametrize("tiers", ["--fast --thorough", "--fast --costly", "--costly --thorough"])
def test_tiers_are_refused_together(asked, tiers):
    assert launch(*tiers.split()).exit_code == 2
    assert asked == []


def test_without_xdist_tests_run_one_after_the_other_and_a_line_says_so(asked, monkeypatch):
    monkeypatch.setattr(testing, "find_spec", lambda name: None)
    done = launch("--fast")
    assert "pytest-xdist is missing" in done.stdout
    assert asked[0][0] == "--durations=20"
