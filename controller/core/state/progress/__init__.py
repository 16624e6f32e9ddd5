"""Responses on their way: what each has, and what an instance tells of all of its own at once."""
