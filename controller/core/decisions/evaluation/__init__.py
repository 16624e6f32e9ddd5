"""Held-out prompts: when they run, and where."""
