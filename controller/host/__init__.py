"""The live controller: the core between sockets, disk, clock and processes."""
