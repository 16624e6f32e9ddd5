"""On how many devices a run works."""
