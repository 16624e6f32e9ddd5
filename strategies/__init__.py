"""Choices as pure functions on a frozen view: which work to admit, where to run it, when to pull, what to
keep."""
