"""The commands of launch.py that look at runs which wrote a journal."""
