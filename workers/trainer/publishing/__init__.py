"""Policy versions on their way out of the trainer."""
