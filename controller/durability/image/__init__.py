"""Images of the core, and cores of images."""
