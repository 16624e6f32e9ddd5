"""What runs within a sandbox: files that are handed in as text, and import the standard library alone."""
