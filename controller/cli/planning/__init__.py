"""Commands of launch.py that plan runs."""
