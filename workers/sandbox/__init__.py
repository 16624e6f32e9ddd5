"""Runs programs that a model wrote, each in its own processes, within limits, and ends all of them."""
