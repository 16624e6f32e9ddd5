"""vLLM as a rollout engine, on a GPU or a CPU, through its public API only; `start` makes one."""
