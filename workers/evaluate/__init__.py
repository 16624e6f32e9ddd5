"""Evaluates a checkpoint or an endpoint without a run, on prompts or on episodes."""
