"""A worker's end of the wire, below all roles."""
