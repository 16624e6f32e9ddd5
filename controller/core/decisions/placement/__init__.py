"""Where trajectories run, and what becomes of them."""
