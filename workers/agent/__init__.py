"""The agent worker: episodes of the user's code, whose words become tokens and back."""
