"""A trainer's state on the disk, in the shares of the ranks that wrote it."""
