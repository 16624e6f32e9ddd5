"""Re-derives a run's past from its journal: its core at any event, lanes of workers, lives of groups."""
