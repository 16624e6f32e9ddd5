"""The configuration: its sections, how it is read, and what it may say."""
