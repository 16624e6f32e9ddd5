"""Renders messages into tokens and parses answers, by chat templates or a user's code."""
