"""Where groups come from, and how they are scored."""
