"""The controller: decides everything, computes nothing. Imports neither torch, transformers nor vllm."""
