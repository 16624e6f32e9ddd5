"""What concerns agents alone."""
