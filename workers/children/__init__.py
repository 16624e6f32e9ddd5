"""Processes in which workers run their users' code, and the packets between them."""
