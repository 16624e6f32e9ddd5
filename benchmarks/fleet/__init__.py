"""A fleet of simulated instances behind real connections, and what the real controller makes of it."""
