"""Which instance gets which policy version, when, and from where."""
