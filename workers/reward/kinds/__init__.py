"""Rewards by name: a module per kind of `protocol.rewards.kinds.KINDS`.

Each has `make(options, place)`, which returns a function of a shape that users' functions have
(docs/rewards.md). It runs in a process of the reward and nowhere else. What a response deserves, it
returns; what keeps it from finding that out, it raises: `Unscorable` with a sentence for the user.
"""
