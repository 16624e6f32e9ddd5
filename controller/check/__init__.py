"""What `launch.py check` finds before anything starts."""
