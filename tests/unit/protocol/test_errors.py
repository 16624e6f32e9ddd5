"""The first cause of an error is found in groups of any depth."""

from protocol.errors import RunError, first_cause


def test_the_first_of_a_group_in_a_group_is_the_cause():
    first, second = RunError("one"), RunError("two")
    nested = ExceptionGroup("tasks", [ExceptionGroup("tasks of a task", [first, second]), second])
    assert first_cause(nested) is first
    assert first_cause(first) is first
