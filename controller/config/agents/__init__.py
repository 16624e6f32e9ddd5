"""Settings of agents that more than one key decides."""
