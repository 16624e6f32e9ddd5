"""A worker process: `python -m workers.host`."""
