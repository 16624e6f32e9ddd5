"""Runs programs that a model wrote: each in processes of its own, within limits, and leaves none behind."""
