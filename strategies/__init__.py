"""Scheduling strategies as pure functions: which groups start, where they run, when to pull, what to keep."""
