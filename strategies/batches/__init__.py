"""Which groups make a batch: samplers, and what they know of lengths."""
