"""Makes the files that start a run on a cluster."""
