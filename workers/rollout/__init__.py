"""The rollout worker: runs an inference engine and reports its tokens and load."""
