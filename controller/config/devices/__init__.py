"""The devices of a run: rules for `placement`."""
