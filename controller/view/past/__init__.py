"""What is re-derived from the journal of a run: its core at any event, its lanes, the life of a group."""
