"""What the core knows of agents: episodes, and what their workers were told."""
