"""A machine whose own limits are below those of a program."""

import resource

import pytest

from workers.sandbox.supervisor import Broken, within_hard_limits

WANTED = {"RLIMIT_NOFILE": 128, "RLIMIT_AS": 1 << 30, "RLIMIT_CORE": 0}


def with_hard(monkeypatch, **hard: int) -> None:
    found = {getattr(resource, name): most for name, most in hard.items()}
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (infinite, found.get(which, infinite)))


def test_limits_that_the_machine_allows_are_kept(monkeypatch):
    with_hard(monkeypatch)
    assert within_hard_limits(WANTED) == WANTED
    with_hard(monkeypatch, RLIMIT_NOFILE=128, RLIMIT_AS=1 << 30)
    assert within_hard_limits(WANTED) == WANTED


def test_a_program_may_have_as_many_open_files_as_there_can_be(monkeypatch):
    with_hard(monkeypatch, RLIMIT_NOFILE=64)
    assert within_hard_limits(WANTED) == WANTED | {"RLIMIT_NOFILE": 64}


def test_a_limit_that_the_user_has_chosen_is_not_lowered(monkeypatch):
    with_hard(monkeypatch, RLIMIT_AS=1 << 20)
    with pytest.raises(
        Broken, match=r"RLIMIT_AS is 1048576 here, and a program is to have 1073741824\. Raise"
    ):
        within_hard_limits(WANTED)
