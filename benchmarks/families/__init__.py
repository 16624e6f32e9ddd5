"""Families of models, each probed by a tiny one: `python -m docs.make_models` writes the table."""
