"""Evaluation without a run: a checkpoint or an endpoint answers prompts and plays episodes."""
