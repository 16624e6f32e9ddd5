"""The agent worker: runs episodes of the user's code, and turns chat messages into tokens and back."""
