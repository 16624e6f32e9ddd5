"""The commands of launch.py."""
