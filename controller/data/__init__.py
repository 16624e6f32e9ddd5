"""Sources of prompts: files, data sets, functions, and how their rows become prompts."""
