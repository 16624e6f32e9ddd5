"""The trainer: batches in, policy versions and checkpoints out."""
