"""The configuration: its sections, how it is read, and the rules between its keys."""
