"""Which groups make a batch: samplers, and the response lengths that they expect."""
