"""Rules for settings of agents that depend on more than one key."""
