"""What does the work: rollout, reward and trainer processes. Nothing here decides or imports controller."""
