"""What trainer and controller both know of a trainer."""
