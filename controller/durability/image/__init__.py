"""Images of the core as bytes, and back to the core."""
