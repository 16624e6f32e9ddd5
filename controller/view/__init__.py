"""Eyes on a run: its core at any moment, and the pages that show it."""
