"""Sends a run's lines to trackers, and notifications to people."""
