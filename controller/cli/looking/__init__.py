"""The commands of launch.py that look at runs, and the output of `launch.py eval`."""
