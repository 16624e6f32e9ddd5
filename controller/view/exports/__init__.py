"""What a run sends to other programs: trackers and people who want to hear of it."""
