"""verifiers is an extra: what is used of it has no types here."""
