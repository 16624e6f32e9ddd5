"""Makes, loads and adapts models."""
