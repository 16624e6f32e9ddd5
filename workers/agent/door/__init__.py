"""The door: an OpenAI-compatible endpoint, at which any client can ask an episode's policy."""
