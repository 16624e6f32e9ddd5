"""What survives: the journal, payload and snapshots of a run, and how they are read."""
