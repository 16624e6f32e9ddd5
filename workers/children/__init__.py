"""Processes in which workers run their users' code, and what they say to each other."""
