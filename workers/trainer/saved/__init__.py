"""A trainer's state on disk, as shares that the ranks write."""
