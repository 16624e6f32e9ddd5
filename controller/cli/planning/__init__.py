"""The commands of launch.py that come before a run."""
