"""What the core keeps of windows of prompts."""
