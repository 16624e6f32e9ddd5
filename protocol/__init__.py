"""What controller and workers say to each other: ids, messages, bytes, sessions, sockets, shared settings."""
