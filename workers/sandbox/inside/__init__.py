"""Code that runs within a sandbox: passed in as text, and importing only the standard library."""
