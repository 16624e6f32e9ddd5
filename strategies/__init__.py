"""Choices as pure functions on a frozen view: what to admit, where to run it, when to pull, what to keep."""
