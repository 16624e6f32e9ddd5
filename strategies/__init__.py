"""Decisions as pure functions of a frozen view: what to admit, where to run, when to pull, what to keep."""
