"""The view of a run in a browser: its core at any moment, and the pages that show it."""
