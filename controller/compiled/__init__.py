"""The core compiled by mypyc from the same sources (`launch.py compile`): optional, and twice as fast."""
