"""What users bring as an agent, and how each kind becomes one coroutine function."""
