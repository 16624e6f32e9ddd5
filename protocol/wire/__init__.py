"""Bytes: codec, sessions, sockets, keys."""
