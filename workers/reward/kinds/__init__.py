"""Rewards by name: one module per kind of `protocol.rewards.kinds.KINDS`.

Each has `make(options, place)`, which returns a function of a shape that users' functions have
(docs/rewards.md). It runs only in a process of the reward. It returns the score of a response; if something
keeps it from scoring, it raises `Unscorable` with a sentence for the user.
"""
