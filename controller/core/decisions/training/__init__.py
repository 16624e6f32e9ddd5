"""What the trainer is fed with, and when."""
