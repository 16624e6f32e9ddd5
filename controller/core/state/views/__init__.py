"""Functions of the state as strategies see it."""
