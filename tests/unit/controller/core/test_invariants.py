"""Invariants that span modules see what is broken."""

import pytest

from tests.support.core_run import Run


def test_what_is_due_before_the_last_event_was_decided_upon():
    run = Run()
    rests, due = run.core.state.versions.rests, run.core.state.now - 0.001
    rests.add("rollout-0", 0, due + 0.001)
    run.core.check()
    rests.add("rollout-0", 0, due)
    with pytest.raises(AssertionError, match=f"due at {due} was not decided upon"):
        run.core.check()
