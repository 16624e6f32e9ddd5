"""Rollout engines behind one interface."""
