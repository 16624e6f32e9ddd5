"""The door: an endpoint in the shape of OpenAI's, by which any client asks an episode's policy."""
