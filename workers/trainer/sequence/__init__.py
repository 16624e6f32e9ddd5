"""Packed rows that several ranks share, each with a part of the tokens: sequence parallelism."""
