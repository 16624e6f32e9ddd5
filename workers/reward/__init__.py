"""The reward worker: encodes prompts, and scores responses in processes of the reward function."""
