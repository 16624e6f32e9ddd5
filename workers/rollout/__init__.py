"""The rollout worker: an engine, and what it reports."""
