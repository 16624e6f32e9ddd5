"""The kinds of agents that users may bring, each adapted to one coroutine function."""
