"""What the core knows: the state of a run, which decisions read and change."""
