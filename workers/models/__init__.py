"""Models: how they are made, loaded and adapted."""
