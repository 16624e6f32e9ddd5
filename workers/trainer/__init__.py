"""The trainer: receives batches, publishes policy versions and writes checkpoints."""
