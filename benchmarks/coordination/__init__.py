"""What the coordinator must show, in virtual time: `python -m benchmarks.coordination`."""
