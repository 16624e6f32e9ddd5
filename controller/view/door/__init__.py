"""Access to the view in a browser: tokens, listening sockets, and the server."""
