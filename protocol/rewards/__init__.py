"""What a controller and a reward worker agree on about rewards: the named ones, and functions of users."""
