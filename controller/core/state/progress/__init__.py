"""Progress of responses in flight: each by itself, and in columns per instance."""
