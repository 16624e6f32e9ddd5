"""What the core decides, in rooms by what is decided."""
