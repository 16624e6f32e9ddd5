"""What one machine's card makes of StaleFlow, in a table: `python -m benchmarks.gpu`."""
