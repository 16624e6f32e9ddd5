"""Publishes policy versions: copies the trainer's weights to where rollout workers read them."""
