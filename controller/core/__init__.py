"""The decisions of a run: pure, synchronous, deterministic; knows no clock, socket, disk or tensor."""
