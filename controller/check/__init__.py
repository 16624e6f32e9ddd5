"""Checks of a run before it starts, for `launch.py check`."""
