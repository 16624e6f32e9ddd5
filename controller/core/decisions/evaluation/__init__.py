"""When held-out prompts run, and on which instances."""
